"""What the verbs rely on in the files that they keep. A file that is not so is none: state can always be rebuilt.

A file may have been cut off, spoiled, or written by another version of these tools; keys that are not named here stay.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

import msgspec


class Lease(TypedDict):
    token: str
    owner: str
    after: str
    previous: list[str]
    tries: NotRequired[int]
    why: NotRequired[str]


class Start(TypedDict, total=False):
    """Of one engine, in running.json."""

    configuration: str
    fingerprint: str
    ready_fingerprint: str
    started_at: float
    ready_seconds: float
    log_offset: int
    gpus: list[int] | None
    began: dict[str, Any]
    stages: dict[str, float]


class Switch(TypedDict, total=False):
    token: str
    phase: str
    changed: bool
    stopped: list[str]
    gpus: list[int] | None
    judged: list[int] | None
    unproved: list[int] | None
    progress: dict[str, Any]
    start: dict[str, Any]
    failure: dict[str, Any] | None


LAST_FAILURE = "last_failure.json"


class Failure(TypedDict, total=False):
    """Of last_failure.json: a failure as it was told, of which configuration, and when."""

    configuration: str
    at: float
    kind: str
    stage: str
    sentence: str
    advice: str
    evidence: list[str]
    may_pass: bool


class Job(TypedDict, total=False):
    id: str
    asked_again: str
    tries: int
    configuration: str
    fingerprint: str
    workload: str | dict[str, Any]
    concurrency: int
    repeat: int
    engine_pid: int | None


class Result(TypedDict, total=False):
    id: str
    phase: str
    failure: str | None


class Watch(TypedDict, total=False):
    job: str
    signs: dict[str, Any]
    configuration: str
    why: str


class Warmed(TypedDict, total=False):
    started_at: float | None
    workloads: dict[str, dict[str, Any]]


class Host(TypedDict, total=False):
    """What was last seen of it, in host.json."""

    gpus: list[dict[str, Any]]
    checks: list[dict[str, Any]]
    communication: dict[str, Any]


class Service(TypedDict):
    configuration: str
    fingerprint: str
    at: str


class Before(TypedDict):
    units: list[str]
    fingerprints: dict[str, str]


class PromotionBegun(TypedDict):
    configuration: str
    fingerprint: str
    before: Before
    began_at: float


class Promoted(TypedDict):
    now: Service | None
    before: Before | None


def has(content: Any, form: type) -> bool:
    """Whether something read from JSON is of a form."""
    try:
        msgspec.convert(content, form)
    except msgspec.ValidationError:
        return False
    return True
