"""The end of a sweep at a terminal: what is said, and the three commands that one may want next."""

from __future__ import annotations

import json
import shlex
from io import StringIO

import msgspec
import pytest
from builders import a_point, a_record
from rich.console import Console
from typer.testing import CliRunner

from benchmark.campaign import command, turns
from benchmark.campaign import record as rec
from benchmark.campaign.judged import decided, written
from benchmark.campaign.store import Campaign
from benchmark.cli import application
from benchmark.report.tables import markdown

H200S = rec.Host(name="gpu1", gpus=[{"name": "NVIDIA H200"}] * 2)


def measured(name, number, rate, host=H200S, **more):
    fields = {
        "configuration": rec.Configuration(name=name, against=None if name == "a" else "a"),
        "engine": rec.Engine(name="sglang", version="0.5.11"),
        "model": rec.Model(name="mini-moe", path="/models/elsewhere"),
        "workload": {"name": "prose", "prompt_tokens": 1024},
        "ladder": [1, 8],
        "fingerprint": name,
        "start_number": number,
        "outcome": "measured",
        "points": [a_point(c, rate * c / 8, workload="prose") for c in (1, 8)],
    }
    return a_record(host=host, **(fields | more))


CLOSE = [
    measured(*start) for start in (("a", 1, 100.0), ("a", 2, 104.0), ("a", 3, 98.0), ("b", 1, 103.0), ("b", 2, 99.0))
]


def campaign_of(tmp_path, records, plan=(), fingerprints=None, **asked):
    campaign = Campaign(tmp_path, "c")
    campaign.open({"name": "c"})
    for record in records:
        campaign.put(record)
    asked = {"ladder": [1, 8], "confidence": "full", **asked}
    said = {"host": "gpu1", "plan": list(plan), "fingerprints": fingerprints or {}, "asked": asked}
    with campaign.locked():
        campaign.keep_sweep(turns.kept_sweep(json.dumps(said).encode()))
    return campaign


def said_at_the_end(monkeypatch, campaign, *words):
    """What `shardsweep sweep WORDS` says where its playbook ends with this campaign."""
    answer = {"folder": str(campaign.folder), "turn": {}, "minutes": 0.0}
    data = {"host": "gpu1", "task": "Next | ask", "res": {"stdout": json.dumps(answer)}}

    def watched(playbook, arguments, take, cancelled):
        take({"event": "runner_on_ok", "event_data": data})
        return "successful", 0

    monkeypatch.setattr(command, "run_watched", watched)
    done = CliRunner().invoke(application, ["sweep", *words], env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    return done.output, [line.strip() for line in lines[lines.index("Next:") + 1 :] if line.strip()]


TYPED = [
    *("a", "b", "-i", "my hosts.yml", "--limit", "gpu1", "--workload", "prose", "--concurrencies", "1,8"),
    *("-e", "rate=2", "-e", "sglang_model_path=/models/x"),
]


def test_a_full_sweep_that_is_undecided_is_offered_a_campaign_of_its_own_with_four_looks(tmp_path, monkeypatch):
    said, (promote, sweep, plan) = said_at_the_end(monkeypatch, campaign_of(tmp_path, CLOSE), *TYPED)
    winner = said.split("Winner: ")[1].split()[0]
    assert promote == f"shardsweep promote {winner} -i 'my hosts.yml' --limit gpu1 -e sglang_model_path=/models/x"
    # One look was asked for, and had: a second one would have no error left.
    assert "further starts of this campaign name nothing new" in said
    assert sweep == (
        "shardsweep sweep a b --concurrencies 1,8 --workload prose --confidence full -i 'my hosts.yml' --limit gpu1 "
        "-e rate=2 -e sglang_model_path=/models/x -e looks=4 -e sglang_report_campaign=c-again"
    )
    assert plan == (
        "shardsweep plan --search --model mini-moe --hardware '2x NVIDIA H200' --release 0.5.11 --workload prose "
        "--concurrencies 1,8"
    )
    # It runs as it stands.
    assert CliRunner().invoke(application, [*shlex.split(plan)[1:], "--no-calibration"]).exit_code == 0


def test_a_search_that_is_offered_names_no_workload_that_plan_does_not_know(tmp_path):
    out = StringIO()
    model, own = rec.Model(name="/srv/models/mini-moe", path="/srv/models/mini-moe/"), {"name": "mine"}
    records = [
        msgspec.structs.replace(CLOSE[0], model=model, workload=own, points=[a_point(8, 100.0, workload="mine")])
    ]
    assert command.report_command(campaign_of(tmp_path, records).folder, Console(file=out, width=100)) == 0
    (plan,) = (line.strip() for line in out.getvalue().splitlines() if "plan --search" in line)
    assert plan == (
        "shardsweep plan --search --model /srv/models/mini-moe/ --hardware '2x NVIDIA H200' --release 0.5.11 "
        "--concurrencies 1,8"
    )
    assert CliRunner().invoke(application, [*shlex.split(plan)[1:], "--no-calibration"]).exit_code == 0


def test_a_password_that_was_typed_is_not_said_again(tmp_path, monkeypatch):
    words = ["-e", "ansible_become_password=hunter2", "-e", "sglang_model_url=https://me:hunter2@mirror/x"]
    said, (promote, sweep, _) = said_at_the_end(monkeypatch, campaign_of(tmp_path, CLOSE), *words)
    assert "hunter2" not in said
    assert "-e ansible_become_password=REMOVED" in promote and "-e ansible_become_password=REMOVED" in sweep


def test_looks_that_are_left_are_gone_on_with(tmp_path, monkeypatch):
    # Four were asked for, and the two had one: the budget was short.
    campaign = campaign_of(tmp_path, CLOSE, looks=4)
    said, (_, sweep, _) = said_at_the_end(monkeypatch, campaign, "a", "b", "-e", "looks=4", "--budget", "120")
    assert sweep == "shardsweep sweep a b --budget 120 --retry may_pass -e looks=4"
    assert "name nothing new" not in said


def test_what_a_budget_left_out_of_the_repeats_is_said_at_the_end(tmp_path, monkeypatch):
    """The winner's number is the one that chose it, and the baseline has two of its three starts."""
    sure = [measured("a", n, 100.0 + n) for n in (1, 2)] + [measured("b", n, 150.0 + n) for n in (1, 2)]
    entries = [
        {
            "name": name,
            "verdict": "runs",
            "sentence": "",
            "configuration": {"name": name, "against": against, "engine": {}, "environment": {}},
        }
        for name, against in (("a", None), ("b", "a"))
    ]
    known = {name: {"fingerprint": name} for name in ("a", "b")}
    campaign = campaign_of(tmp_path, sure, plan=entries, fingerprints=known, budget_minutes=120)
    said, (_, sweep, _) = said_at_the_end(monkeypatch, campaign, "a", "b", "--budget", "120")
    told = said[said.index("Winner: b") :].splitlines()
    assert told[1:3] == [
        "One more start of b on gpu1 is wanted. It was read on the starts that chose it; a fresh start is needed "
        "before it is quoted.",
        "One more start of a on gpu1 is wanted. The baseline has 2 of its 3 starts, and drift is estimated from all of "
        "them.",
    ]
    # The same again goes on where it was, with as many minutes.
    assert sweep == "shardsweep sweep a b --budget 120 --retry may_pass"
    third = [*sure, measured("a", 3, 100.0)]
    _, (_, sweep, _) = said_at_the_end(
        monkeypatch, campaign_of(tmp_path / "other", third, plan=entries, fingerprints=known), "a", "b"
    )
    assert sweep == "shardsweep sweep b --confidence quick --retry all"


def test_more_of_what_is_sure_is_said_to_name_nothing_new(tmp_path, monkeypatch):
    sure = [measured("a", n, 100.0 + n) for n in (1, 2, 3)] + [measured("b", n, 150.0 + n) for n in (1, 2, 3)]
    said, (_, sweep, _) = said_at_the_end(monkeypatch, campaign_of(tmp_path, sure), "a", "b")
    assert sweep == "shardsweep sweep a b --retry all"
    assert "Further starts narrow what is quoted; the error is spent, and they name nothing new." in said


def test_a_quick_sweep_is_offered_a_full_one(tmp_path, monkeypatch):
    campaign = campaign_of(tmp_path, [CLOSE[0], CLOSE[3]], confidence="quick")
    _, (_, sweep, _) = said_at_the_end(
        monkeypatch, campaign, "--confidence", "quick", "-e", "plan=off", "--limit", "gpu1"
    )
    assert sweep == "shardsweep sweep --confidence full --limit gpu1 -e plan=off"


def test_lists_of_a_file_of_variables_are_offered_as_they_are_typed(tmp_path, monkeypatch):
    (tmp_path / "mine.yml").write_text("configs: [a, b]\nconcurrencies: [1, 8]\n")
    campaign = campaign_of(tmp_path, [CLOSE[0], CLOSE[3]], confidence="quick")
    _, (_, sweep, plan) = said_at_the_end(monkeypatch, campaign, "-e", f"@{tmp_path}/mine.yml")
    assert sweep == f"shardsweep sweep a b --concurrencies 1,8 --confidence full -e @{tmp_path}/mine.yml"
    assert plan.endswith("--concurrencies 1,8")


def test_a_report_offers_what_its_campaign_was_asked_for(tmp_path):
    out = StringIO()
    campaign = campaign_of(tmp_path, CLOSE)
    assert command.report_command(campaign.folder, Console(file=out, width=100)) == 0
    assert (
        "  shardsweep sweep a b --concurrencies 1,8 --workload prose --confidence full -e looks=4 "
        "-e sglang_report_campaign=c-again"
    ) in out.getvalue()


def test_hosts_that_cannot_be_compared_are_told_apart(tmp_path, monkeypatch):
    other = rec.Host(name="gpu2", gpus=[{"name": "NVIDIA L40S"}] * 2)
    records = [
        measured("a", 1, 100.0), measured("b", 1, 150.0), measured("a", 1, 80.0, other), measured("b", 1, 40.0, other)
    ]  # fmt: skip
    said, _ = said_at_the_end(monkeypatch, campaign_of(tmp_path, records))
    assert "  on gpu1: b reached 150.0" in said
    assert "  on gpu2: a reached 80.0" in said


def test_unlike_hosts_are_each_promoted_their_own_winner_and_none_is_named(tmp_path, monkeypatch):
    """Named, the winner of gpu1 would serve on gpu2 as well, where it read 2 against 5."""
    other = rec.Host(name="gpu2", gpus=[{"name": "NVIDIA L40S"}] * 4)
    records = [
        measured("a", 1, 9.0), measured("z", 1, 4.0), measured("a", 1, 2.0, other), measured("z", 1, 5.0, other),
    ]  # fmt: skip
    # gpu2's records are the newest, and say nothing of the winner's GPUs.
    records[2:] = [msgspec.structs.replace(record, updated_at="2026-02-01T00:00:00Z") for record in records[2:]]
    campaign = campaign_of(tmp_path / "campaigns", records)
    monkeypatch.chdir(tmp_path)
    _, (promote, _, plan) = said_at_the_end(monkeypatch, campaign, "-i", "inv.yml", "-e", "sglang_model_path=/models/x")
    assert promote == "shardsweep promote -i inv.yml -e sglang_model_path=/models/x -e sglang_report_campaign=c"
    assert "--hardware '2x NVIDIA H200'" in plan
    # Elsewhere than where campaigns are looked for, the folder is named too; what was typed is not said twice.
    monkeypatch.chdir("/")
    _, (promote, _, _) = said_at_the_end(monkeypatch, campaign, "-e", f"sglang_report_campaigns={tmp_path}/campaigns")
    assert promote == (
        f"shardsweep promote -e sglang_report_campaign=c -e sglang_report_campaigns={tmp_path}/campaigns"
    )


@pytest.mark.parametrize(
    ("objective", "head", "value"),
    [("throughput@8", "C=8", "100"), ("goodput", "goodput", "1.50"), ("peak", "TTFT p50", "100")],
)
def test_the_table_shows_what_the_winner_is_chosen_by(tmp_path, monkeypatch, objective, head, value):
    offered = a_point(8, 50.0, workload="prose_open", goodput_requests_per_second=1.5)
    record = measured("a", 1, 100.0)
    points = [*record.points, msgspec.structs.replace(offered, rate=2.0)]
    campaign = campaign_of(tmp_path, [msgspec.structs.replace(record, points=points)], objective=objective)
    campaign.open({"objective": objective})
    said, _ = said_at_the_end(monkeypatch, campaign)
    assert head in said
    row = next(line for line in said.splitlines() if line.startswith("* a"))
    assert value in row.split()


def test_what_every_configuration_tells_is_weighed_at_once(tmp_path):
    records = []
    for name, one, many, joules in (("a", 10.0, 100.0, 2.0), ("b", 9.0, 90.0, 1.0), ("c", 8.0, 80.0, 3.0)):
        points = [
            a_point(c, rate, workload="prose", telemetry={"energy_joules_per_token": joules})
            for c, rate in ((1, one), (8, many))
        ]
        records.append(measured(name, 1, 100.0, points=points))
    decision = decided(campaign_of(tmp_path, records, objective="throughput@8"))
    # b is behind in speed and ahead in energy; c is behind in all.
    assert [row["configuration"] for row in decision["pareto"]] == ["a", "b"]
    assert set(decision["pareto"][0]["objectives"]) == {"peak", "single_stream", "throughput@8", "tokens_per_joule"}
    told = markdown(records, decision)
    assert "### By objective" in told
    assert "- tokens per joule: `b`. b reached 1.00 tokens a joule" in told
    assert "| configuration | peak | single stream |" in told.split("### None beats these in everything at once")[1]


def test_the_pages_name_the_winner_of_each_host(tmp_path):
    other = rec.Host(name="gpu2", gpus=[{"name": "NVIDIA L40S"}] * 2)
    records = [
        measured("a", 1, 100.0),
        measured("b", 1, 80.0),
        measured("b", 1, 40.0, other),
        measured("a", 1, 30.0, other),
    ]
    campaign = campaign_of(tmp_path, records)
    with campaign.locked():
        _, files = written(campaign)
    by_host = files["report.md"].read_text().split("### By host")[1]
    assert "- gpu1: `a`." in by_host and "- gpu2: `b`." in by_host
    page = files["report.html"].read_text()
    assert "Hosts that cannot be compared have a winner each" in page
