"""The record: everything about one configuration on one host, as one versioned JSON document.

Raw values are kept beside a record (one line a request); what stands here is derived from them and can be
derived again. Times are seconds, sizes are bytes, rates are per second; dates are ISO 8601 in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

SCHEMA_VERSION = 1

Outcome = Literal["measured", "failed", "rejected", "skipped"]


class CampaignError(ValueError):
    """What a campaign is asked for, or finds, cannot be; the text says what, where and what to change."""


class RecordError(CampaignError):
    """A record that cannot be read; the text says what is wrong and where."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """A sample in numbers. Percentiles interpolate linearly between order statistics (Hyndman-Fan type 7)."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float | None
    """None where the sample is smaller than 1,000: it would rest on fewer than ten values."""
    min: float
    max: float


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """Something noticed about a point. `invalid` takes the point out of every ranking and picture."""

    id: str
    severity: Literal["note", "warning", "invalid"]
    message: str


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One concurrency measured once."""

    workload: str
    concurrency: int
    repeat: int = 1
    started_at: str
    engine_started_at: str | None = None
    """`Start.started_at` of the engine start that this point was measured on."""
    duration_seconds: float
    """From the first request sent to the last answer complete."""
    window_seconds: float
    """The steady part that the rates below are taken from."""
    requests_completed: int
    requests_failed: int
    prompt_tokens: int
    output_tokens: int
    """Tokens of completed requests, from the server's `usage`."""
    output_tokens_per_second: float | None = None
    output_tokens_per_second_half_width: float | None = None
    """Of its 95 % interval, by batch means over the window, as a fraction of it."""
    prompt_tokens_per_second: float | None = None
    """Prompt tokens of the requests whose first token came inside the window, over the window."""
    requests_per_second: float | None = None
    output_tokens_per_second_per_user: float | None = None
    """1 / median TPOT: the speed that one user sees while tokens flow."""
    ttft_seconds: Distribution | None = None
    itl_seconds: Distribution | None = None
    tpot_seconds: Distribution | None = None
    e2e_seconds: Distribution | None = None
    first_content_seconds: Distribution | None = None
    """As TTFT, to the first text that is not reasoning; only where the two differ."""
    rate: float | None = None
    """Requests a second that were offered; None: a closed loop, always `concurrency` in flight."""
    goodput_requests_per_second: float | None = None
    """Requests a second inside the stated limits; from an open loop only."""
    flags: list[Flag] = []
    errors: dict[str, int] = {}
    """Text of a failure -> how often."""
    client: dict[str, Any] = {}
    """The load generator about itself: CPU share, lateness, clock source."""
    server: dict[str, Any] = {}
    """The engine's counters over the same window."""
    telemetry: dict[str, Any] = {}
    """Power, clocks, utilization, energy; empty where nothing can be read."""
    raw: str | None = None
    """File name of the requests, beside the record."""

    @property
    def valid(self) -> bool:
        return not any(flag.severity == "invalid" for flag in self.flags)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a configuration did not run, in the user's words."""

    kind: str
    """Stable identifier, such as `out_of_memory_weights` or a rule's id."""
    stage: str
    """Where: `check`, `plan`, `stop`, or a stage of the start (engine/lifecycle.py), or `measuring`."""
    sentence: str
    evidence: list[str] = []
    """Lines of the engine's log."""
    advice: str = ""
    may_pass: bool = False
    """Whether another try, with nothing changed, could end differently."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    seconds: float
    """Since the engine was started."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the engine, as its log and its endpoints told it."""

    started_at: str
    ready_seconds: float | None = None
    stages: list[Stage] = []
    weights_bytes: int | None = None
    """A GPU."""
    kv_bytes: int | None = None
    """A GPU."""
    kv_tokens: int | None = None
    """Of one data-parallel rank; those of all are Record.kv_tokens."""
    graph_bytes: int | None = None
    available_before_load_bytes: int | None = None
    available_after_load_bytes: int | None = None
    max_running_requests: int | None = None
    """On one data-parallel rank; on all are Record.running_limit."""
    transports: dict[str, int] = {}
    """NCCL's choice -> channels, such as {"P2P/CUMEM": 16}."""


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """Rungs of the ladder that were not measured, because a measurement says what they would bring."""

    rungs: list[int]
    reason: str
    may_be_best: bool = True
    """Whether one of them may be the configuration's own best; not where a lower rung failed."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str = ""
    against: str | None = None
    hypothesis: str | None = None
    engine: dict[str, Any] = {}
    environment: dict[str, str] = {}
    arguments: list[str] = []
    """The command line, whole; secrets never get here."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    gpus: list[dict[str, Any]] = []
    """index, name, memory_bytes, ... as nvidia-smi told them."""
    driver: str | None = None
    hardware: str | None = None
    details: dict[str, Any] = {}


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    name: Literal["sglang", "simulated", "other"]
    """`other`: any server that speaks OpenAI's HTTP, measured by its address alone."""
    version: str
    packages: dict[str, str] = {}

    @property
    def simulated(self) -> bool:
        return self.name == "simulated"


class Model(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    path: str = ""
    revision: str | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int = SCHEMA_VERSION
    fingerprint: str
    """sha256 over `fingerprint_of`: the same inputs need no second measurement."""
    fingerprint_of: dict[str, Any] = {}
    start_number: int = 1
    """Which engine start of these inputs this is; starts are the replicates of an experiment."""
    created_at: str
    updated_at: str
    configuration: Configuration
    host: Host
    """The one that was measured, and is served from."""
    nodes: list[str] = []
    """Hosts that the engine was spread over, `host` first; empty where it was one."""
    engine: Engine
    model: Model
    workload: dict[str, Any] = {}
    ladder: list[int] = []
    after_ladder: list[dict[str, Any]] = []
    """Points that follow the ladder on the same start (load/further.py): {"workload", "concurrency", "repeat"}."""
    outcome: Outcome
    complete: bool = False
    """Every rung of the ladder was measured, or the outcome is final."""
    failure: Failure | None = None
    start: Start | None = None
    """The engine's last start that this record knows of."""
    earlier_starts: list[Start] = []
    """Starts before it that some of the points were measured on: of a sweep that was cut off and went on later."""
    left: Left | None = None
    """Rungs that were left out on purpose."""
    plan: dict[str, Any] = {}
    """What was predicted before the start."""
    points: list[Point] = []
    accuracy: dict[str, Any] = {}
    """Answers at temperature 0 to a few fixed prompts (load/accuracy.py); empty where none were asked."""
    warm_up: dict[str, Any] = {}
    """How the newest start was warmed up: seconds of each pass, whether the last two agreed, the probe."""
    tools_version: str = ""
    unknown: dict[str, Any] = {}
    """Keys that this version does not know; they are written back as they were read."""

    @property
    def folder_name(self) -> str:
        """Where the record is kept, below its configuration's folder."""
        return folder_name(self.fingerprint, self.start_number)

    @property
    def simulated(self) -> bool:
        return self.engine.simulated

    @property
    def data_parallel_ranks(self) -> int:
        """Replicas, or groups of attention: each has a KV cache and a limit of its own."""
        told = self.configuration.engine.get("dp_size")
        return told if isinstance(told, int) and told > 0 else 1

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that the KV caches of all data-parallel ranks hold."""
        each = self.start.kv_tokens if self.start else None
        return each and each * self.data_parallel_ranks

    @property
    def running_limit(self) -> int | None:
        """Requests that run at once, on all data-parallel ranks."""
        each = self.start.max_running_requests if self.start else None
        return each and each * self.data_parallel_ranks

    def peak(self) -> Point | None:
        """The valid point of the ladder with the highest output throughput."""
        usable = [p for p in self.ladder_points if p.valid and p.output_tokens_per_second]
        return max(usable, key=lambda p: p.output_tokens_per_second or 0.0, default=None)

    def at(self, concurrency: int) -> Point | None:
        """The last valid point of the ladder at this concurrency."""
        return next((p for p in reversed(self.ladder_points) if p.valid and p.concurrency == concurrency), None)

    @property
    def ladder_points(self) -> list[Point]:
        """The points of the record's own workload, without those of others that ran on the same start."""
        own = self.workload.get("name")
        return [p for p in self.points if own is None or p.workload == own]

    def covers(self, ladder: Iterable[int]) -> bool:
        """Whether each of these rungs has a point, or was left out on purpose."""
        known = {point.concurrency for point in self.ladder_points}
        return set(ladder) <= known.union(self.left.rungs if self.left else ())


def folder_name(fingerprint: str, start_number: int) -> str:
    """The first start is kept under the fingerprint alone, the second under `FINGERPRINT-s2`."""
    return fingerprint if start_number == 1 else f"{fingerprint}-s{start_number}"


_KNOWN = tuple(name for name in Record.__struct_fields__ if name != "unknown")
_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Record)


def dump(record: Record) -> bytes:
    """The record as indented JSON, keys of mappings sorted, one trailing newline."""
    known = {name: msgspec.Raw(_encoder.encode(getattr(record, name))) for name in _KNOWN}
    return msgspec.json.format(msgspec.json.encode(known | record.unknown), indent=1) + b"\n"


def load(text: bytes | str, where: str = "record") -> Record:
    """Read a record, of this schema version or an older one.

    Raises:
        RecordError: not JSON, not a record, or written by a newer version.
    """
    try:
        version = msgspec.json.decode(text, type=_Versioned).schema_version
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RecordError(f"{where} is not a record: {error}") from error
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"{where} has schema version {version}; this Shardsweep reads up to {SCHEMA_VERSION}. "
            "Upgrade Shardsweep, or measure again."
        )
    try:
        record = _decoder.decode(text)
        parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if unknown := {name: msgspec.json.decode(raw) for name, raw in parts.items() if name not in _KNOWN}:
            record = msgspec.structs.replace(record, unknown=unknown)
        return record
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RecordError(f"{where} is not a record of schema version {version}: {error}") from error


class _Versioned(msgspec.Struct):
    schema_version: int


def schema() -> dict[str, Any]:
    """The JSON schema of a record."""
    return msgspec.json.schema(Record)
