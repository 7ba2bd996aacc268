"""What is asked of the engine: lengths, text, how many at a time, and for how long. The same for all configurations."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("random_ids", "text", "shared_prefix", "replay")
ROUTES = ("auto", "generate", "completions", "chat")


class WorkloadError(ValueError):
    """A workload that makes no sense; the text names the key and what is allowed."""


@dataclass(frozen=True)
class Workload:
    """A workload. Lengths are tokens, times are seconds.

    Attributes:
        kind: `random_ids` (ids drawn at random, exact lengths, unlike text for an expert router), `text` (English
            prose), `shared_prefix` (text with `shared_prefix_tokens` in common), `replay` (`file`: JSON lines).
        length_range: lengths are uniform on [range x n, n]; 1.0 gives exactly n.
        seed: of prompts and lengths; the name, and a point's concurrency and repeat number, are mixed in.
        requests: at most so many requests inside the window of a point; None leaves it to the time.
        window_seconds: how long the window of a point may last at most.
        minimum_window_seconds, minimum_requests: the window lasts at least so long and holds so many finished
            requests (at least `minimum_requests` and, in a closed loop, as many as the concurrency) if time allows.
        half_width: the window may end when the throughput is known to this fraction (95 %).
        ramp_turnover: completed requests, as a share of the concurrency, before the window may start.
        rate: requests a second of an open loop (Poisson); None: closed loop at a concurrency.
        ttft_limit_seconds, tpot_limit_seconds: limits that goodput is counted under.
    """

    name: str
    kind: str = "random_ids"
    prompt_tokens: int = 1024
    output_tokens: int = 512
    length_range: float = 1.0
    seed: int = 1
    shared_prefix_tokens: int = 0
    file: str | None = None
    requests: int | None = None
    window_seconds: float = 120.0
    minimum_window_seconds: float = 30.0
    minimum_requests: int = 16
    half_width: float = 0.01
    ramp_turnover: float = 0.5
    rate: float | None = None
    ttft_limit_seconds: float | None = None
    tpot_limit_seconds: float | None = None
    ignore_eos: bool = True
    temperature: float = 0.0
    description: str = ""

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer of the longest request."""
        return self.prompt_tokens + self.output_tokens

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Workload:
        """A workload from plain data, such as YAML.

        Raises:
            WorkloadError: an unknown key, a value of the wrong type, or one that makes no sense.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        for key in values:
            if key not in known:
                raise WorkloadError(f"workload has no key {key!r}; it has {', '.join(known)}.")
        if "name" not in values:
            raise WorkloadError("a workload needs a name.")
        checked = {key: _typed(key, known[key].type, value) for key, value in values.items()}
        found = cls(**checked)
        _check(found)
        return found

    def to_mapping(self) -> dict[str, Any]:
        """Plain data that `from_mapping` reads back."""
        return dataclasses.asdict(self)


def _typed(key: str, wanted: Any, value: Any) -> Any:
    names = str(wanted).replace(" ", "").split("|")
    if value is None and "None" in names:
        return None
    if isinstance(value, bool) != ("bool" in names):
        raise WorkloadError(f"workload key {key!r} is {value!r}; it must be {' or '.join(names)}.")
    for name, kinds in (("int", (int,)), ("float", (int, float)), ("str", (str,)), ("bool", (bool,))):
        if name in names and isinstance(value, kinds):
            return float(value) if name == "float" else value
    raise WorkloadError(f"workload key {key!r} is {value!r}; it must be {' or '.join(names)}.")


def _check(work: Workload) -> None:
    def refuse(key: str, why: str) -> None:
        raise WorkloadError(f"workload {work.name!r}: {key} is {getattr(work, key)!r}; {why}.")

    if not work.name or not all(c.isalnum() or c in "_-" for c in work.name):
        refuse("name", "use letters, digits, - and _, since it becomes part of a file name")
    if work.kind not in KINDS:
        refuse("kind", f"it must be one of {', '.join(KINDS)}")
    for key in ("prompt_tokens", "output_tokens", "minimum_requests"):
        if getattr(work, key) < 1:
            refuse(key, "it must be at least 1")
    if work.requests is not None and work.requests < 1:
        refuse("requests", "it must be at least 1, or null")
    if not 0 < work.length_range <= 1:
        refuse("length_range", "it must be above 0 and at most 1 (1: all equally long)")
    if not 0 < work.half_width < 1:
        refuse("half_width", "it must be a fraction between 0 and 1, such as 0.01")
    if not 0 <= work.ramp_turnover <= 2:
        refuse("ramp_turnover", "it must be between 0 and 2")
    for key in ("window_seconds", "rate", "ttft_limit_seconds", "tpot_limit_seconds"):
        value = getattr(work, key)
        if value is not None and not 0 < value < float("inf"):
            refuse(key, "it must be above 0")
    if not 0 <= work.minimum_window_seconds <= work.window_seconds:
        refuse("minimum_window_seconds", "it must be at most window_seconds")
    if work.temperature < 0:
        refuse("temperature", "it must be 0 or more")
    if work.kind == "shared_prefix" and not 0 < work.shared_prefix_tokens < work.prompt_tokens:
        refuse("shared_prefix_tokens", "it must be above 0 and below prompt_tokens")
    if work.kind != "shared_prefix" and work.shared_prefix_tokens:
        refuse("shared_prefix_tokens", "only the kind shared_prefix has one")
    if (work.kind == "replay") != (work.file is not None):
        refuse("file", "the kind replay needs a file, and no other kind has one")
    if work.file is not None and not Path(work.file).is_file():
        refuse("file", "there is no such file on this host")


NAMED: dict[str, Workload] = {
    work.name: work
    for work in (
        Workload(
            name="quick",
            prompt_tokens=64,
            output_tokens=16,
            window_seconds=2.5,
            minimum_window_seconds=1.0,
            minimum_requests=4,
            half_width=0.02,
            ramp_turnover=0.25,
            description="Small, to try things out: seconds a point, also on the simulated engine.",
        ),
        Workload(
            name="chat",
            prompt_tokens=1024,
            output_tokens=512,
            description="The default: 1,024 tokens in, 512 out, as a chat with some history.",
        ),
        Workload(
            name="long_prompt",
            prompt_tokens=16384,
            output_tokens=64,
            minimum_requests=8,
            description="Long prompts, short answers: prefill speed and time to first token.",
        ),
        Workload(
            name="quick_long",
            prompt_tokens=4096,
            output_tokens=4,
            window_seconds=1.2,
            minimum_window_seconds=1.0,
            minimum_requests=2,
            half_width=0.02,
            ramp_turnover=0.25,
            description="As long_prompt, in seconds.",
        ),
        Workload(
            name="prose",
            kind="text",
            prompt_tokens=1024,
            output_tokens=512,
            description="As chat, with English prose: expert routing and its balance are those of text.",
        ),
    )
}


def given(text: str) -> Workload:
    """A shipped workload by its name, or one of a JSON file by its path; a replayed file is looked for beside it.

    Raises:
        WorkloadError: there is none of that name, no such file, or it holds no workload.
    """
    path = Path(text)
    if path.suffix != ".json":
        return named(text)
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise WorkloadError(f"{text} cannot be read as a workload: {error}") from error
    if not isinstance(values, dict):
        raise WorkloadError(f"{text} holds no workload: a mapping of its keys is needed.")
    values = {"name": path.stem, **values}
    if isinstance(values.get("file"), str):
        values["file"] = str(path.parent / values["file"])
    return Workload.from_mapping(values)


def named(name: str) -> Workload:
    """A shipped workload.

    Raises:
        WorkloadError: there is none of that name.
    """
    if name not in NAMED:
        raise WorkloadError(f"there is no workload {name!r}; shipped are {', '.join(NAMED)}.")
    return NAMED[name]
