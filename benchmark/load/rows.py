"""One line a request: what is kept of a measurement, and enough to derive every figure again.

Times are whole microseconds since the point's start (an arbitrary zero of the host's monotonic clock); what a
summary is made of is rounded once, when the row is made, so that a summary from the file is the same to the digit.
"""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson
import zstandard

from ..durable import flush_names
from .wire.answers import counts_per_event
from .wire.exchange import Exchange

FORMAT = 1
CANCELLED = "cancelled by the load generator after the window"
"""The error of a request that was given up as not needed any more; it is no failure."""


class RowsError(ValueError):
    """A file of requests that cannot be read; the text says what is wrong and in which line."""


class RequestRow(msgspec.Struct, kw_only=True):
    """One request. `token_us[i]` is when the i-th token event arrived, `counts[i]` the output tokens by then."""

    index: int
    first_wave: bool
    intended_us: int
    """When it should have been sent: in an open loop the arrival that was drawn, else `sent_us`."""
    sent_us: int
    head_us: int | None
    done_us: int
    prompt_asked: int
    output_asked: int
    prompt_tokens: int | None
    output_tokens: int | None
    """From the server's usage; None if it told none."""
    cached_tokens: int | None
    finish_reason: str | None
    error: str | None
    status: int
    events: int
    """Events of the stream, with and without tokens."""
    shared_events: int
    """Token events that came in the same read as an earlier one, and so have its time."""
    retried: int
    first_content_us: int | None
    count_source: str
    """How `token_counts` are known: reported, one_each, interpolated, unknown (wire/answers.py)."""
    token_us: array
    token_counts: array
    """See `counts`; empty where each event was one token, which is nearly always."""
    details: dict[str, Any] = {}

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def times(self) -> np.ndarray:
        """`token_us` for computing."""
        return np.frombuffer(self.token_us, dtype=np.int64)

    @property
    def counts(self) -> np.ndarray:
        """Output tokens after each token event; empty if they are not known."""
        if self.count_source == "unknown":
            return np.array([], dtype=np.int64)
        if not self.token_counts:
            return np.arange(1, len(self.token_us) + 1)
        return np.frombuffer(self.token_counts, dtype=np.int64)

    @property
    def counted_tokens(self) -> int:
        """Output tokens of a completed request; 0 for a failed one or without usage."""
        return (self.output_tokens or 0) if self.ok else 0


def row_of(exchange: Exchange, zero_ns: int, *, index: int, first_wave: bool, intended_ns: int | None = None,
           prompt_asked: int, output_asked: int) -> RequestRow:  # fmt: skip
    """The row of a finished exchange; `zero_ns` is the point's start on the monotonic clock."""
    answer = exchange.answer
    error = exchange.failure()
    counts, source = counts_per_event(answer)

    def since(at_ns: int | None) -> int | None:
        return None if at_ns is None else (at_ns - zero_ns + 500) // 1000

    times = (np.frombuffer(answer.times, dtype=np.int64) - (zero_ns - 500)) // 1000

    sent_us = since(exchange.sent_ns)
    return RequestRow(
        index=index,
        first_wave=first_wave,
        intended_us=sent_us if intended_ns is None else since(intended_ns),
        sent_us=sent_us,
        head_us=since(exchange.head_ns),
        done_us=since(exchange.done_ns),
        prompt_asked=prompt_asked,
        output_asked=output_asked,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.completion_tokens,
        cached_tokens=answer.cached_tokens,
        finish_reason=answer.finish_reason,
        error=error,
        status=exchange.status,
        events=answer.events,
        shared_events=exchange.shared_events,
        retried=exchange.retried,
        first_content_us=since(answer.first_content_ns),
        count_source=source,
        token_us=array("q", times.tobytes()),
        token_counts=array("q") if counts and counts[-1] == len(counts) else counts,
        details=answer.server_details,
    )


def write_requests(path: Path, rows: list[RequestRow], about: dict[str, Any] | None = None) -> None:
    """Write rows as JSON lines, compressed with zstd; the first line is `about`, what the point's summary needs.

    Token times and counts are differences (the first time since `sent_us`). The file is written whole or not at all,
    and is on disk before a point names it.
    """
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as raw, zstandard.ZstdCompressor(level=6).stream_writer(raw, closefd=False) as out:
        out.write(orjson.dumps({"format": FORMAT, "about": about or {}}) + b"\n")
        for row in rows:
            out.write(orjson.dumps(_packed(row)) + b"\n")
        out.close()
        raw.flush()
        os.fsync(raw.fileno())
    temporary.replace(path)
    flush_names(path.parent)


def read_requests(path: Path) -> list[RequestRow]:
    """The rows of a file that `write_requests` wrote.

    Raises:
        RowsError: no such format, or a damaged line.
    """
    return read_all(path)[1]


def read_all(path: Path) -> tuple[dict[str, Any], list[RequestRow]]:
    """(`about`, rows) of a file that `write_requests` wrote."""
    try:
        with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as text:
            lines = text.read().splitlines()
    except (OSError, zstandard.ZstdError) as error:
        raise RowsError(f"{path} cannot be read: {error}") from error
    number = 1
    try:
        head = orjson.loads(lines[0])
        if head["format"] != FORMAT:
            raise RowsError(f"{path} has format {head['format']}; this Shardsweep reads format {FORMAT}.")
        rows = []
        for line in lines[1:]:
            number += 1
            rows.append(_unpacked(orjson.loads(line)))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, RowsError):
            raise
        raise RowsError(f"{path}, line {number}, is no request: {error}") from error
    return head["about"], rows


def _packed(row: RequestRow) -> dict[str, Any]:
    fields = msgspec.structs.asdict(row)
    fields["token_us"] = _differences(row.token_us, row.sent_us)
    fields["token_counts"] = _differences(row.token_counts, 0)
    return fields


def _differences(values: array, start: int) -> list[int]:
    found = []
    for value in values:
        found.append(value - start)
        start = value
    return found


def _sums(differences: list[int], start: int) -> array:
    values = array("q")
    for difference in differences:
        start += difference
        values.append(start)
    return values


def _unpacked(fields: dict[str, Any]) -> RequestRow:
    times = _sums(fields["token_us"], fields["sent_us"])
    return RequestRow(**{**fields, "token_us": times, "token_counts": _sums(fields["token_counts"], 0)})
