"""Cutting a body into events."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from benchmark.load.wire.sse import EventSplitter


def split(*pieces: bytes) -> list[bytes]:
    splitter = EventSplitter()
    found = [payload for piece in pieces for payload in splitter.feed(piece)]
    return found + splitter.finish()


def test_one_event():
    assert split(b"data: {}\n\n") == [b"{}"]


def test_several_events_in_one_piece():
    assert split(b"data: 1\n\ndata: 2\n\ndata: 3\n\n") == [b"1", b"2", b"3"]


def test_comments_ids_and_names_are_no_events():
    assert split(b": ping\n\nevent: x\nid: 7\ndata: 1\n\n:\n\nretry: 3\n\n") == [b"1"]


def test_line_ends():
    assert split(b"data: 1\r\n\r\ndata: 2\r\rdata: 3\n\n") == [b"1", b"2", b"3"]


def test_a_crlf_may_be_cut_in_two():
    assert split(b"data: 1\r", b"\n\r", b"\ndata: 2\r\n\r\n") == [b"1", b"2"]


def test_several_data_lines_are_joined():
    assert split(b"data: a\ndata: b\ndata\n\n") == [b"a\nb"]


def test_one_space_after_the_colon_is_taken_off():
    assert split(b"data:1\n\ndata:  2\n\n") == [b"1", b" 2"]


def test_byte_order_mark():
    assert split(b"\xef\xbb\xbfdata: 1\n\n") == [b"1"]


def test_the_last_blank_line_may_be_missing():
    assert split(b"data: 1\n\ndata: 2") == [b"1", b"2"]
    assert split(b"data: 1\n\ndata: 2\n") == [b"1", b"2"]


BODY = b': hi\n\ndata: {"a":"\xc3\xa9"}\r\n\r\ndata: x\ndata: y\n\nevent: e\ndata:z\n\ndata: [DONE]\n\n'


@given(st.lists(st.integers(0, len(BODY))))
def test_cut_anywhere_gives_the_same(cuts):
    edges = [0, *sorted(cuts), len(BODY)]
    pieces = [BODY[a:b] for a, b in pairwise(edges)]
    assert split(*pieces) == [b'{"a":"\xc3\xa9"}', b"x\ny", b"z", b"[DONE]"]


@given(st.lists(st.binary(max_size=30)))
def test_whatever_comes_is_no_error(pieces):
    for payload in split(*pieces):
        assert isinstance(payload, bytes)
