"""The fixed prompts, and answers held against a baseline's."""

import math

import pytest

from benchmark.campaign import record as rec
from benchmark.campaign.decide import decide
from benchmark.load import accuracy, agreement, measure
from benchmark.load.accuracy import read_generated
from benchmark.load.agreement import Answer, compare, compare_records, parting_gap
from benchmark.load.target import Target

from .fake import plain, serving, stream
from .replay import CAPTURES
from .test_measure import reference

SURE, TORN = math.log(0.95), math.log(0.45)


def answer(ids, logprobs=(), prompt="p", **more):
    return Answer(prompt=prompt, text="", ids=list(ids), logprobs=list(logprobs), **more)


def eight(make):
    return [answer(*make(i), prompt=str(i)) for i in range(8)]


def test_the_same():
    found = compare([answer([1, 2]), answer([3], prompt="q")], [answer([1, 2]), answer([3], prompt="q")])
    assert (found.verdict, found.exact, found.total, found.prefix_share) == ("same", 2, 2, 1.0)


def test_parting_where_the_model_was_torn_is_rounding():
    """At the fourth token each has 45 %: either may be first. What follows is another text and proves nothing."""
    left = eight(lambda i: ([1, 2, 3, 4, 5, 6], [SURE, SURE, SURE, TORN, SURE, SURE]))
    right = eight(lambda i: ([1, 2, 3, 9, 8, 7], [SURE, SURE - 0.1, SURE - 0.2, TORN, -3, -3]))
    found = compare(left, right)
    assert (found.verdict, found.exact, found.apart, found.prefix_share) == ("close", 0, 0, 0.5)
    assert found.logprob_difference == pytest.approx(0.1)
    assert found.widest_gap == 0


def test_even_the_first_token_may_be_rounded_otherwise():
    left, right = eight(lambda i: ([1, 2], [TORN, SURE])), eight(lambda i: ([3, 4], [TORN, SURE]))
    assert compare(left, right).verdict == "close"


def test_parting_where_the_model_was_sure_is_not():
    """0.95 against at most 0.05 for the other's token: ln 19 = 2.94 nats, late in the answer or not."""
    left = eight(lambda i: ([*range(40), 1], [SURE] * 41))
    right = eight(lambda i: ([*range(40), 2], [SURE] * 41))
    found = compare(left, right)
    assert (found.verdict, found.apart) == ("different", 8)
    assert found.widest_gap == pytest.approx(math.log(19))
    assert "8 part where the model was sure" in found.sentence


def test_one_such_prompt_of_eight_is_not_enough():
    """One expert chosen otherwise can do that; two of eight cannot be chance."""
    left = eight(lambda i: ([1, 2], [SURE, SURE]))

    def with_wrong(count):
        return eight(lambda i: ([1, 9] if i < count else [1, 2], [SURE, SURE]))

    assert compare(left, with_wrong(1)).verdict == "close"
    assert compare(left, with_wrong(2)).verdict == "different"


def test_the_gap_is_what_the_surer_of_the_two_proves():
    """Torn here (0.45), sure there (0.9): ln 9."""
    a, b = answer([1], [TORN]), answer([2], [math.log(0.9)])
    assert parting_gap(a, b, 0) == pytest.approx(math.log(9))
    assert parting_gap(answer([1]), answer([2]), 0) is None


def test_the_same_text_with_other_probabilities_is_different():
    left, right = eight(lambda i: ([1, 2], [-1.0, -1.0])), eight(lambda i: ([1, 2], [-2.0, -2.0]))
    found = compare(left, right)
    assert (found.verdict, found.exact) == ("different", 8)


def test_without_probabilities_only_the_length_in_common_counts():
    """Eight tokens: parting at the second (an eighth) is early, at the third (a quarter) is not."""
    left = eight(lambda i: ([1, 2, 3, 4, 5, 6, 7, 8],))
    assert compare(left, eight(lambda i: ([1, 9, 9, 9, 9, 9, 9, 9],))).verdict == "different"
    assert compare(left, eight(lambda i: ([1, 2, 9, 9, 9, 9, 9, 9],))).verdict == "close"


def test_texts_where_there_are_no_ids():
    a, b = Answer(prompt="p", text="the same start"), Answer(prompt="p", text="the same end")
    assert compare([a], [b]).prefix_share == pytest.approx(9 / 14)


def test_unknown():
    for other in ([], [answer([1], error="HTTP 500: no")], [answer([1], prompt="other")]):
        assert compare([answer([1])], other).verdict == "unknown"
    assert "HTTP 500" in compare([answer([1])], [answer([1], error="HTTP 500: no")]).sentence


def test_the_captured_answer():
    body = (CAPTURES / "endpoints" / "generate_once.txt").read_bytes().partition(b"\n")[2]
    found = read_generated("p", body)
    assert found.ids == [26764, 8051, 26450, 21185, 9615, 8777, 18850, 27268]
    assert found.text.startswith(" NoAppException")


def test_logprobs_as_sglang_gives_them():
    body = b'{"text":"ab","meta_info":{"output_token_logprobs":[[-0.5,11,"a"],[-1.5,12,null]]}}'
    found = read_generated("p", body)
    assert (found.ids, found.logprobs) == ([11, 12], [-0.5, -1.5])


def test_rubbish_is_an_error():
    for body in (b"", b"[]", b'{"text":1}', b'{"text":"a","meta_info":{"output_token_logprobs":[7]}}'):
        assert read_generated("p", body).error


def test_all_prompts_are_asked_once_at_temperature_zero():
    with reference() as (_, url):
        told = measure.run(accuracy.check(Target(url)))
    found = agreement.answers_of(told)
    assert [item.prompt for item in found] == list(accuracy.PROMPTS)
    assert (told["temperature"], told["output_tokens"]) == (0, 48)
    assert all(item.error is None and len(item.ids or item.text) for item in found)


def test_a_server_that_fails_is_an_answer_with_an_error():
    with reference(kind="openai", faults=dict.fromkeys(range(1, 99), "refuse")) as (_, url):
        told = measure.run(accuracy.check(Target(url)))
    assert all("503" in item.error for item in agreement.answers_of(told))


def test_an_engine_without_log_probabilities_still_answers():
    def answer_to(path, head, body):
        if path == "/server_info":
            return plain(b'{"tp_size": 1, "version": "x"}'), False
        if path == "/generate" and b'"stream":true' in body:
            return stream(b'{"text":"a","output_ids":[5],"meta_info":{"finish_reason":{"type":"length"},'
                          b'"prompt_tokens":1,"completion_tokens":1}}', b"[DONE]"), False  # fmt: skip
        if path == "/generate" and b"return_logprob" in body:
            return plain(b'{"error":{"message":"not with speculative decoding"}}', b"400 Bad Request"), False
        if path == "/generate":
            return plain(b'{"text":"ab","output_ids":[5,6],"meta_info":{"id":"x"}}'), False
        return plain(b"{}", b"404 Not Found"), False

    with serving(answer_to) as (url, _):
        found = agreement.answers_of(measure.run(accuracy.check(Target(url))))
    assert [(item.ids, item.logprobs, item.error) for item in found] == [([5, 6], [], None)] * 8


def record(name, answers, against=None, host="h", created="2026-01-01T00:00:00Z", workload=None):
    told = {"answers": [{"prompt": a.prompt, "text": a.text, "ids": a.ids, "logprobs": a.logprobs} for a in answers]}
    return rec.Record(
        fingerprint=name * 8,
        created_at=created,
        updated_at=created,
        configuration=rec.Configuration(name=name, against=against),
        host=rec.Host(name=host),
        engine=rec.Engine(name="sglang", version="0.5.11"),
        model=rec.Model(name="m"),
        outcome="measured",
        accuracy=told if answers else {},
    )


RIGHT = eight(lambda i: ([1, 2, 3], [SURE] * 3))
WRONG = eight(lambda i: ([1, 7, 7], [SURE] * 3))


def test_two_records():
    assert compare_records(record("a", RIGHT), record("b", WRONG, "a")).verdict == "different"
    unasked = compare_records(record("a", RIGHT), record("b", [], "a"))
    assert (unasked.verdict, unasked.sentence) == ("unknown", "Answers could not be compared: b was not asked.")


def test_a_configuration_that_is_fast_and_wrong_is_named_in_the_decision():
    records = [record("base", RIGHT), record("good", RIGHT, "base"), record("bad", WRONG, "base")]
    named = [note for note in decide(records)["notes"] if "answers otherwise" in note]
    assert len(named) == 1
    assert named[0].startswith("bad answers otherwise than base: 0 of 8 answers")


def test_each_host_has_its_own_baseline():
    records = [record("base", RIGHT), record("base", WRONG, host="other"), record("x", WRONG, "base", host="other")]
    assert agreement.notes(records) == []


def test_answers_of_another_form_are_none():
    assert agreement.answers_of({"answers": [{"prompt": 7}]}) == []
    assert agreement.answers_of({}) == []
