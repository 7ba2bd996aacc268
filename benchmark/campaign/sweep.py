"""A sweep as its events tell it: ansible-runner's event stream folded into plain state. No I/O."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_WORTH_A_LINE_SECONDS = 15
_ENDED = ("measured", "failed", "rejected", "deferred", "known")


@dataclass
class Turn:
    """One configuration on one host, and the engine start of it that is under way or was last."""

    name: str
    host: str
    rungs: list[int]
    state: str = "waiting"
    """waiting, opening, stopping, starting, measuring, measured, failed, rejected, deferred (by the budget), known
    (measured before)."""
    start_number: int = 1
    detail: str = ""
    done: list[int] = field(default_factory=list)
    began_at: float | None = None
    ended_at: float | None = None
    peak: float | None = None
    peak_concurrency: int | None = None
    sentence: str = ""
    announced: tuple[int, int] | None = None
    """The point whose cost was told: its concurrency, and how many were done before it."""

    @property
    def over(self) -> bool:
        return self.state in _ENDED


@dataclass
class Event:
    """Something worth a line, for whoever reads a log."""

    text: str
    turn: Turn | None = None
    plan: bool = False
    """A line of the plan: shown before anything happens, by the live view too."""


class Sweep:
    """Folds events into turns. `take` answers what is new, so that a plain log needs no state of its own."""

    def __init__(self, clock: Callable[[], float] = time.time, forks: int = 5) -> None:
        """`forks`: how many hosts Ansible looks after at a time."""
        self.turns: dict[tuple[str, str], Turn] = {}
        self.folder: str | None = None
        self.errors: list[str] = []
        self.serving: dict[str, list[str]] = {}
        """host -> units that serve, where the playbook stopped because of them."""
        self.hosts_seen = False
        self.installing = False
        self.tokens: dict[str, str] = {}
        """host -> the token that this sweep holds it with."""
        self.foreseen: set[str] = set()
        self._left: dict[str, tuple[float, float]] = {}
        """host -> (seconds left, told when)."""
        self._clock, self._forks = clock, max(forks, 1)
        self._current: dict[str, str] = {}
        self._would_stop: dict[str, list[str]] = {}
        self._under_way: set[str] = set()

    def take(self, event: Mapping[str, Any]) -> list[Event]:
        data = event.get("event_data") or {}
        host = str(data.get("host") or "")
        result = data.get("res") if isinstance(data.get("res"), dict) else {}
        match event.get("event"):
            case "playbook_on_task_start" if str(data.get("task", "")).startswith("Install | make the virtual"):
                return self._installing()
            case "runner_on_ok" | "runner_item_on_ok":
                self.hosts_seen = True
                return self._ok(host, data, result)
            case "runner_retry":
                return self._looked(host, data, result)
            case "runner_on_failed" if not data.get("ignore_errors"):
                self.hosts_seen = True
                return self._failed(host, data, result)
            case "runner_on_unreachable":
                text = f"{host} cannot be reached: {result.get('msg', 'no reason given')}"
                self._lost(host)
                self.errors.append(text)
                return [Event(text)]
        return []

    def ended(self) -> list[Turn]:
        return [turn for turn in self.turns.values() if turn.over]

    def seconds_left(self) -> float | None:
        """Until the last host is through, by what the schedules foresee; None before one was asked.

        A host that waits for one of Ansible's forks begins when another host is through.
        """
        if not self._left:
            return None
        now = self._clock()
        begun = [max(0.0, left - (now - told)) for host, (left, told) in self._left.items() if host in self._under_way]
        free = sorted(begun, reverse=True)[: self._forks]
        free += [0.0] * (self._forks - len(free))
        heapq.heapify(free)
        for host, (left, _) in self._left.items():
            if host not in self._under_way:
                heapq.heapreplace(free, free[0] + left)
        return max(free)

    def best(self) -> Turn | None:
        return max((turn for turn in self.turns.values() if turn.peak), key=lambda turn: turn.peak or 0, default=None)

    def _turn(self, host: str) -> Turn | None:
        return self.turns.get((host, self._current.get(host, "")))

    def _ok(self, host: str, data: Mapping[str, Any], result: Mapping[str, Any]) -> list[Event]:
        facts = result.get("ansible_facts") or {}
        if "sweep_token" in facts:
            self.tokens[host] = str(facts["sweep_token"])
            self._under_way.add(host)
        if "would_stop" in facts:
            self._would_stop[host] = list(facts["would_stop"])
        answer = _answer(result)
        task = str(data.get("task") or "")
        if answer is None:
            return []
        if "Begin |" in task:
            return self._begun(host, task, answer)
        if "Foresee | what" in task or "Open | write" in task:
            return self._foreseen(host, answer)
        if "Next |" in task:
            return self._next(host, answer)
        if "Switch |" in task or "Point |" in task:
            return self._stepped(host, task, answer)
        if "Record | close it" in task:
            return self._closed(host, answer)
        if "report" in answer and "folder" in answer:
            self.folder = answer["folder"]
        return []

    def _installing(self) -> list[Event]:
        if self.installing:
            return []
        self.installing = True
        return [Event("installing the tools on the host")]

    def _looked(self, host: str, data: Mapping[str, Any], result: Mapping[str, Any]) -> list[Event]:
        answer = _answer(result)
        return self._stepped(host, str(data.get("task") or ""), answer) if answer else []

    def _foreseen(self, host: str, answer: Mapping[str, Any]) -> list[Event]:
        """The plan, told once; when the sweep is opened it may have moved a little."""
        kept = {row["configuration"]: row for row in answer["kept"]}
        skipped = {row["configuration"]: row for row in answer["skipped"]}
        for name in dict.fromkeys([*(row["configuration"] for row in answer["order"]), *kept, *skipped]):
            turn = self.turns.setdefault((host, name), Turn(name=name, host=host, rungs=[]))
            if name in kept:
                turn.state = "failed" if kept[name]["outcome"] == "failed" else "known"
                turn.sentence = turn.detail = kept[name]["why"]
            elif name in skipped:
                turn.state = "deferred" if skipped[name]["deferred"] else "rejected"
                turn.sentence = skipped[name]["reason"]
        self._left[host] = (answer["minutes"] * 60, self._clock())
        if host in self.foreseen:
            return []
        self.foreseen.add(host)
        return [Event(line, plan=True) for line in answer["lines"]]

    def _next(self, host: str, answer: Mapping[str, Any]) -> list[Event]:
        self._left[host] = (answer["minutes"] * 60, self._clock())
        self._under_way.add(host)
        self.folder = answer["folder"]
        if not answer["turn"]:
            return []
        name = answer["turn"]["configuration"]
        turn = self.turns.setdefault((host, name), Turn(name=name, host=host, rungs=[]))
        turn.start_number = answer["turn"]["start_number"]
        return [Event(f"{host}  {_name(turn)}  next: {answer['turn']['sentence']}", turn)]

    def _begun(self, host: str, task: str, answer: Mapping[str, Any]) -> list[Event]:
        name = task.rsplit(" ", 1)[-1]
        self._current[host] = name
        turn = self.turns.setdefault((host, name), Turn(name=name, host=host, rungs=[]))
        turn.began_at, turn.start_number = self._clock(), answer.get("start_number") or 1
        turn.done = list(answer.get("measured") or [])
        turn.rungs = list(answer.get("ladder") or turn.rungs)
        turn.rungs += [int(other["concurrency"]) for other in answer.get("further") or []]
        turn.state = "known" if answer.get("complete") else "opening"
        if turn.state == "known":
            turn.detail = "measured before"
            return [Event(f"{host}  {_name(turn)}  measured before, kept", turn)]
        return []

    def _stepped(self, host: str, task: str, answer: Mapping[str, Any]) -> list[Event]:
        turn = self._turn(host)
        # Of several nodes the first speaks for all.
        if turn is None or "phase" not in answer or answer.get("node"):
            return []
        before = (turn.state, turn.detail)
        if "Point |" in task:
            return self._point(turn, task, answer)
        if answer["phase"] in ("stopping", "starting", "ready"):
            turn.state = "stopping" if answer["phase"] == "stopping" else "starting"
            turn.detail = "ready" if answer["phase"] == "ready" else str(answer.get("waiting_for") or "")
        elif answer["phase"] == "failed":
            turn.sentence = (answer.get("failure") or {}).get("sentence", "")
        return [] if before == (turn.state, turn.detail) else [Event(_line(turn), turn)]

    def _point(self, turn: Turn, task: str, answer: Mapping[str, Any]) -> list[Event]:
        rung = int(task.rsplit(" ", 1)[-1]) if task.rsplit(" ", 1)[-1].isdigit() else 0
        turn.state = "measuring"
        if answer["phase"] == "running":
            progress = answer.get("progress") or {}
            turn.detail = _progress(rung, progress)
            return self._expected(turn, rung, progress.get("expected_seconds") or {})
        if answer["phase"] == "failed":
            turn.sentence = str(answer.get("failure") or "")
            return []
        if answer["phase"] == "left":
            turn.detail = f"concurrency {rung} left out: {answer.get('reason')}"
            return [Event(_line(turn), turn)]
        point = answer.get("point") or {}
        turn.done.append(rung)
        rate = point.get("output_tokens_per_second")
        what = str(point.get("label") or f"concurrency {rung}")
        turn.detail = f"{what}: {rate:,.1f} tok/s" if rate else f"{what}: no rate"
        for name, unit in (("prompt_tokens_per_second", "prompt tok/s"), ("goodput_requests_per_second", "good req/s")):
            turn.detail += f", {point[name]:,.1f} {unit}" if point.get(name) is not None else ""
        if not point.get("valid", True):
            turn.detail += f" (invalid: {'; '.join(point.get('flags') or ['see the report'])})"
        elif rate and rate > (turn.peak or 0) and not point.get("label"):
            turn.peak, turn.peak_concurrency = rate, rung
        return [Event(_line(turn), turn)]

    def _expected(self, turn: Turn, rung: int, expected: Mapping[str, Any]) -> list[Event]:
        """A line before a point of more than a few seconds: what it will cost."""
        if not expected or turn.announced == (rung, len(turn.done)) or expected["most"] < _WORTH_A_LINE_SECONDS:
            return []
        turn.announced = (rung, len(turn.done))
        return [Event(f"{turn.host}  {turn.name}  measuring  concurrency {rung}: takes {expected['text']}", turn)]

    def _closed(self, host: str, answer: Mapping[str, Any]) -> list[Event]:
        turn = self._turn(host)
        if turn is None:
            return []
        if turn.state != "known":
            turn.state = "measured" if answer.get("outcome") == "measured" else "failed"
        turn.ended_at = self._clock()
        turn.sentence = answer.get("failure") or ""
        if peak := answer.get("peak_output_tokens_per_second"):
            turn.peak, turn.peak_concurrency = peak, answer.get("peak_concurrency")
        turn.detail = turn.sentence or (f"peak {turn.peak:,.1f} tok/s at {turn.peak_concurrency}" if turn.peak else "")
        return [Event(_line(turn), turn)]

    def _failed(self, host: str, data: Mapping[str, Any], result: Mapping[str, Any]) -> list[Event]:
        if "Ask | may it be stopped" in str(data.get("task") or ""):
            self.serving[host] = self._would_stop.get(host, [])
        answer = _answer(result) or {}
        text = answer.get("error") or answer.get("failure") or result.get("msg") or "failed"
        if isinstance(text, Mapping):
            text = text.get("sentence", "failed")
        turn = self._turn(host)
        if turn is not None and not turn.over and turn.state != "waiting":
            # Rescued: the turn ends as failed, and says so when its record is closed.
            turn.sentence = str(text)
            return []
        self._lost(host)
        self.errors.append(f"{host}: {text}")
        return [Event(f"{host}  {text}")]

    def _lost(self, host: str) -> None:
        """A host that takes no part any more, before its turn came, has no time left to wait for."""
        if host not in self._under_way:
            self._left.pop(host, None)


def _answer(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON object that a verb printed, if this result is a verb's."""
    text = result.get("stdout")
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return None
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _progress(rung: int, progress: Mapping[str, Any]) -> str:
    rate = progress.get("output_tokens_per_second")
    phase = str(progress.get("phase") or "starting")
    expected = (progress.get("expected_seconds") or {}).get("text")
    return (
        f"concurrency {rung}, {phase}"
        + (f", {rate:,.0f} tok/s" if rate else "")
        + (f", takes {expected}" if expected else "")
    )


def _name(turn: Turn) -> str:
    return turn.name if turn.start_number == 1 else f"{turn.name} start {turn.start_number}"


def _line(turn: Turn) -> str:
    return f"{turn.host}  {_name(turn)}  {turn.state}" + (f"  {turn.detail}" if turn.detail else "")
