"""The fixed prompts asked of simulated engines: right, split otherwise, and fast but wrong."""

from __future__ import annotations

import pytest
from builders import a_record
from test_simulated_engine import simulated

from benchmark.campaign import record as rec
from benchmark.campaign.decide import decide
from benchmark.load import accuracy, agreement, measure
from benchmark.load.target import Target

pytestmark = pytest.mark.slow


def asked(folder, *arguments: str, **environment: object) -> dict:
    with simulated(folder, *arguments, **environment) as engine:
        return measure.run(accuracy.check(Target(engine.url)))


def record(name: str, told: dict, against: str | None = None) -> rec.Record:
    configuration = rec.Configuration(name=name, against=against)
    return a_record(configuration=configuration, outcome="measured", fingerprint=name * 8, accuracy=told)


def test_a_wrong_configuration_is_named_and_another_split_is_not(tmp_path):
    base = record("base", asked(tmp_path / "base", "--tp-size", "8"))
    split = record("split", asked(tmp_path / "split", "--tp-size", "8", "--ep-size", "4"), "base")
    wrong = record("wrong", asked(tmp_path / "wrong", "--tp-size", "8", FAULT="wrong_answers"), "base")
    answers = agreement.answers_of(base.accuracy)
    assert [answer.error for answer in answers] == [None] * 8
    assert all(len(answer.ids) == len(answer.logprobs) == 48 for answer in answers)
    assert agreement.compare_records(base, split).verdict == "same"
    told = agreement.compare_records(base, wrong)
    assert (told.verdict, told.exact, told.apart) == ("different", 0, 8)
    named = [note for note in decide([base, split, wrong])["notes"] if "answers otherwise" in note]
    assert [note.split()[0] for note in named] == ["wrong"]
