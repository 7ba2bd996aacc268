"""Answers held against a baseline's."""

import pytest

from benchmark.load.accuracy import Answer, compare, read_generated

from .replay import CAPTURES


def answer(ids, logprobs=(), prompt="p", **more):
    return Answer(prompt=prompt, text="", ids=list(ids), logprobs=list(logprobs), **more)


def test_the_same():
    found = compare([answer([1, 2]), answer([3], prompt="q")], [answer([1, 2]), answer([3], prompt="q")])
    assert (found.verdict, found.exact, found.total, found.prefix_share) == ("same", 2, 2, 1.0)


def test_close():
    """Three of four tokens in common; there the log-probabilities are 0.1 apart on average."""
    found = compare([answer([1, 2, 3, 4], [-1, -1, -1, -2])], [answer([1, 2, 3, 9], [-1, -1.1, -1.2, -3])])
    assert (found.verdict, found.exact, found.prefix_share) == ("close", 0, 0.75)
    assert found.logprob_difference == pytest.approx(0.1)


def test_different_by_prefix_and_by_logprobs():
    assert compare([answer([1, 2, 3, 4, 5])], [answer([1, 9, 9, 9, 9])]).verdict == "different"
    assert compare([answer([1, 2], [-1.0, -1.0])], [answer([1, 2], [-2.0, -2.0])]).verdict == "different"


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
