"""Answers to the fixed prompts, and what other workloads of a start told, as the page shows them."""

from __future__ import annotations

import math

import msgspec
from builders import a_point, a_record

from benchmark.campaign import record as rec
from benchmark.report.method import answers
from benchmark.report.page import build_page
from benchmark.report.summary import main_workload, rows


def asked(name, ids, against=None):
    told = [{"prompt": str(i), "text": "", "ids": ids, "logprobs": [math.log(0.9)] * len(ids)} for i in range(8)]
    configuration = rec.Configuration(name=name, against=against)
    return a_record(configuration=configuration, outcome="measured", fingerprint=name * 8, accuracy={"answers": told})


def test_what_differs_comes_first():
    records = [asked("base", [1, 2]), asked("split", [1, 2], "base"), asked("wrong", [1, 7], "base")]
    found = answers(records)
    assert [(row["configuration"], row["baseline"], row["verdict"]) for row in found] == [
        ("wrong", "base", "different"),
        ("split", "base", "same"),
    ]
    page = build_page({}, records, {})
    assert "Answers to fixed prompts" in page
    assert "8 part where the model was sure" in page


def test_without_answers_there_is_no_table():
    assert answers([a_record()]) == []
    assert "Answers to fixed prompts" not in build_page({}, [a_record()], {})


def test_other_workloads_of_a_start_do_not_take_the_ladders_place():
    """One rung, two points of long prompts, one open loop: the ladder's workload is still the record's own."""
    points = [
        a_point(8, 90.0, workload="chat"),
        a_point(1, 9.0, workload="long_prompt"),
        a_point(4, 12.0, workload="long_prompt"),
        msgspec.structs.replace(a_point(8, 500.0, workload="chat_open"), rate=2.0, goodput_requests_per_second=1.5),
    ]
    record = a_record(outcome="measured", points=points, workload={"name": "chat"})
    assert main_workload([record]) == "chat"
    (row,) = rows([record], {})
    assert row.peak_value == 90.0
    assert row.goodput == 1.5
