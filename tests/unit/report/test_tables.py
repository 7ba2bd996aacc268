"""Markdown, CSV and the terminal's table."""

from __future__ import annotations

import csv
import io

import pytest
from builders import a_point, a_record
from rich.console import Console

from benchmark.report import tables
from tests.data.campaigns import made


def rendered(records, decision, width=100):
    console = Console(width=width, file=io.StringIO(), color_system=None, legacy_windows=False)
    console.print(tables.terminal_table(records, decision, width))
    return console.file.getvalue()


def test_csv_has_one_row_a_point_and_units_in_its_header():
    records, _ = made.small()
    found = list(csv.DictReader(io.StringIO(tables.csv(records))))
    assert len(found) == 3 * len(made.LADDER)
    first = found[0]
    assert (first["configuration"], first["concurrency_requests"]) == ("ep8", "1")
    assert float(first["output_tokens_per_second"]) == 60.0
    assert float(first["ttft_p50_seconds"]) == 0.11
    assert float(first["energy_joules_per_output_token"]) == 2.0
    assert {row["valid"] for row in found} == {"true", "false"}
    assert [row["flags"] for row in found if row["valid"] == "false"] == ["invalid: compilation"]


def test_csv_names_the_hosts_of_one_engine():
    one, two = a_record(points=[a_point(1, 50.0)]), a_record(points=[a_point(1, 50.0)], nodes=["gpu1", "gpu2"])
    rows = list(csv.DictReader(io.StringIO(tables.csv([one, two]))))
    assert [row["nodes"] for row in rows] == ["", "gpu1 gpu2"]


def test_csv_runs_no_formula_in_a_spreadsheet():
    records, _ = made.hostile()
    names = {row["configuration"] for row in csv.DictReader(io.StringIO(tables.csv(records)))}
    assert "'=cmd|' /C calc'!A0" in names
    assert not any(name.startswith(("=", "+", "-", "@")) for name in names)


def test_csv_of_nothing_is_its_header():
    assert tables.csv([]).count("\n") == 1


def test_markdown_says_who_won_what_failed_and_why():
    records, decision = made.small()
    told = tables.markdown(records, decision)
    assert "**`ep8_tuned`** wins." in told
    assert "| `tp4ep2` | failed | `ep_size 8 → 2`, `tp_size 8 → 4` |" in told
    assert "Set ep\\_size" not in told
    assert "Set ep_size to 1 or 2" in told
    assert "SIMULATED" not in told


def test_markdown_of_a_simulated_campaign_says_so_before_anything_else():
    records = [made.simulated(r) for r in made.small()[0]]
    assert tables.markdown(records, {}).splitlines()[2].startswith("> **SIMULATED")


def test_markdown_lets_no_name_add_markup():
    told = tables.markdown(*made.hostile())
    assert "<img" not in told
    assert "<script" not in told
    assert "@everyone" not in told
    assert "](javascript" not in told.replace("\\]", "")
    header, *body = [line for line in told.splitlines() if line.startswith("| ")]
    bars = {line.replace("\\|", "").count("|") for line in body}
    assert bars == {header.count("|")}


def test_markdown_of_many_fits_a_pull_request():
    assert len(tables.markdown(*made.many())) < 65_536


@pytest.mark.parametrize("case", [made.small, made.hostile, made.all_failed, made.one_point, made.many])
def test_the_terminal_table_fits_its_width(case):
    told = rendered(*case())
    assert max(len(line) for line in told.splitlines()) <= 100
    assert "\x1b" not in told


def test_the_terminal_table_marks_the_winner_and_says_why_others_lost():
    told = rendered(*made.small())
    assert "* ep8_tuned" in told
    assert "Expert groups (ep 4)" in told
    assert "Simulated" not in told


def test_the_terminal_table_says_that_it_was_simulated():
    records = [made.simulated(r) for r in made.small()[0]]
    assert "Simulated: no GPU was measured." in rendered(records, {})
    assert rendered([], {})
