"""Each experiment: what differs from what it is held against, what that did, whether the hypothesis stands. Pure.

Each objective is tested over all experiments together (Holm), with the noise between starts pooled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..engine.configuration import difference
from ..engine.flags import flag_name, is_default
from ..engine.rules import dead_flags
from .hosts import NO_SHIFTS, Shifts, host_shifts
from .objectives import Objective, Starts, compared_starts
from .record import Record
from .statistics import (
    ASSUMED_NOISE,
    LOOKS,
    TIE,
    Effect,
    Noise,
    effect,
    holm_levels,
    look_error,
    look_of,
    more_starts,
    pooled_noise,
    verdict,
)

_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six")
_SUBJECTS = (
    ("ttft", r"\bttft\b|first token"),
    ("prefill", r"prefill|prompt tokens"),
    ("tokens_per_joule", r"joule|energy|power"),
    ("goodput", r"goodput"),
    # "With 256 streams" and "holds more streams" speak of no single one.
    ("single_stream", r"\b(?:single|one|each|every|an?|per|1)[ -](?:stream|user)|\bstreams (?:are|get|run|become)\b"),
    ("peak", r"peak|total|throughput|aggregate|tokens (?:a|per) second"),
)
_NO_EFFECT = {"failed": "failed", "rejected": "was rejected", "skipped": "was not measured"}
_SPLIT = "the split (tp_size and pp_size)"
_TOGETHER = (
    (("tp_size", "pp_size"), _SPLIT),
    (("enable_dp_attention", "dp_size"), "attention replicas (enable_dp_attention and dp_size)"),
)
# Words that judge, whatever is measured, and words of size, of which less is better where time or energy is meant.
_GOOD = r"\b(?:fast(?!est)|quicker|better|improv|gain|sooner|earlier)"
_BAD = r"\b(?:slow(?!est)|worse|hurt|suffer|degrad|later\b|costs?\b(?!\W+(?:no|nothing)\b))"
# "More requests at once" and "fewer returns to the scheduler" say nothing of a size that is measured.
_MEASURED = r"\s+(?:\w+\s+)?(?:tokens?|throughput|goodput|energy|power|joules?|watts?)\b"
_UP = rf"\b(?:rais|rise|rising|rose|higher|increas|grow|doubl|tripl|longer|more{_MEASURED})"
_DOWN = (
    r"\b(?:lower|fall|fell|drop|decreas|shrink|halv|cuts?\b|shorter|shorten|(?<!all-)(?<!all )reduc(?!e-scatter)"
    rf"|(?:less|fewer){_MEASURED})"
)
_NOT = rf"\b(?:no|not|never|neither|nor)\W+(?:\w+\W+)?(?:{_GOOD}|{_BAD}|{_UP}|{_DOWN})"
# Of nothing in particular: "batches of 256 launch every kernel by hand and are slower" speaks of the total.
_OF_NOTHING = r"\b(?:fast(?!est)|quicker|slow(?!est))"
_LESS_IS_BETTER = {"ttft": r"", "tokens_per_joule": r"tokens? (?:a|per) joule|efficien"}
"""Where a smaller number is better, unless the clause has these words ("less energy", but "more tokens a joule")."""
_SAME = r"\bnothing changes\b|\bchanges? (nothing|no)\b|\bno (change|difference|effect)\b|\bthe same\b|\bunchanged\b"
_CLAUSES = r"[;,.:]|\band\b(?!\s*\d)|\bbut\b|\bso\b|\bwhile\b|\bbecause\b"


@dataclass(frozen=True)
class Claim:
    """What a hypothesis says of one objective."""

    objective: str
    better: bool | None
    """None: that it stays as it is."""
    denied: bool = False
    """That it is *not* better, or not worse: "no slower" leaves room for a tie and for more."""


def claims(hypothesis: str | None) -> list[Claim]:
    """What a hypothesis claims, read clause by clause; nothing where nothing can be read.

    "A single stream is faster; the total is lower" claims a better single stream and a worse peak. A clause that is
    faster or slower and names no subject speaks of the total.
    """
    text = (hypothesis or "").lower()
    found: dict[str, Claim] = {}
    for clause in re.split(_CLAUSES, text):
        if (claim := _claim(clause)) is not None:
            found.setdefault(claim.objective, claim)
    if not found and re.search(_SAME, text):
        return [Claim("peak", None)]
    return list(found.values())


def _claim(clause: str) -> Claim | None:
    subject = next((name for name, words in _SUBJECTS if re.search(words, clause)), None)
    if subject is None and re.search(_OF_NOTHING, clause):
        subject = "peak"
    if subject is None:
        return None
    if re.search(_SAME, clause):
        return Claim(subject, None)
    size_is_good, size_is_bad = _UP, _DOWN
    if subject in _LESS_IS_BETTER and not re.search(_LESS_IS_BETTER[subject] or r"(?!)", clause):
        size_is_good, size_is_bad = _DOWN, _UP
    good = bool(re.search(_GOOD, clause) or re.search(size_is_good, clause))
    bad = bool(re.search(_BAD, clause) or re.search(size_is_bad, clause))
    denied = bool(re.search(_NOT, clause))
    if good and bad and denied:
        return Claim(subject, None)  # "neither faster nor slower"
    return Claim(subject, good, denied) if good != bad else None


@dataclass(frozen=True)
class Comparison:
    """Two sides by one objective; `level` is the chance at which it is judged, after Holm and looks."""

    ours: Starts
    theirs: Starts
    by: Objective
    effect: Effect
    noise: Noise
    level: float
    looks: int = 1
    """How often the two are compared in all."""

    @property
    def interval(self) -> tuple[float, float]:
        return self.effect.interval(self.level)

    @property
    def verdict(self) -> str:
        return verdict(*self.interval, more_is_better=self.by.more_is_better)

    @property
    def more_starts(self) -> int | None:
        """Further starts of each side that should make it a difference or a tie."""
        return self.starts_until(lambda low, high: verdict(low, high) != "undecided")

    def starts_until(self, settled: Callable[[float, float], bool]) -> int | None:
        """Further starts of each side until an interval settles it; one where the noise is not yet known, because that
        start tells it.
        """
        return 1 if self.noise.assumed else more_starts(self.effect, self.noise, self.level, settled)

    @property
    def looks_left(self) -> int:
        """How often the two may still be compared, each time after a further start of both."""
        return max(self.looks + 1 - min(self.effect.starts), 0)


def compare(
    pairs: Sequence[tuple[Starts, Starts]],
    by: Objective,
    noise: Noise,
    contenders: int | None = None,
    shifts: Shifts = NO_SHIFTS,
    looks: int = 1,
) -> list[Comparison]:
    """Judge pairs together; those that do not both tell the objective, or are of hosts that cannot be compared, are
    left out. `looks` is how often they are compared in all; starts beyond those are left out.
    """
    first = compared_starts(looks)
    usable = [(a, b, a.logs(by, first), b.logs(by, first)) for a, b in pairs if shifts.comparable(a.host, b.host)]
    usable = [pair for pair in usable if pair[2] and pair[3]]
    effects = []
    for ours, theirs, mine, other in usable:
        shift, variance = shifts.between.get((ours.host, theirs.host), (0.0, 0.0))
        effects.append(effect([x - shift for x in mine], other, noise, variance))
    errors = [look_error(look_of(min(found.starts), looks), looks) for found in effects]
    levels = holm_levels([found.tail for found in effects], errors, contenders)
    return [
        Comparison(ours, theirs, by, found, noise, level, looks)
        for (ours, theirs, _, _), found, level in zip(usable, effects, levels, strict=True)
    ]


def experiments(groups: Sequence[Starts], objectives: Sequence[Objective], looks: int = 1) -> list[dict[str, Any]]:
    """Every configuration that is held against another, as the report shows it.

    Where alike hosts share a sweep, what a configuration is held against may have been measured on another one; what
    the hosts measured in common corrects for their difference.

    Each: {"configuration", "against", "hypothesis", "host", "against_host", "changes": [(key, from, to)], "ignored":
    [keys that the engine does not read], "due_to": key or None, "confounded_by": [keys], "claims", "effect":
    {objective: {"ratio", "low", "high", "verdict", "detectable", "more_starts"}}, "starts": [ours, theirs], "verdict":
    supported | refuted | undecided, "more_starts": further starts of each that should settle it, or None, "sentence"}.
    """
    shifts = {by.name: host_shifts(groups, by) for by in objectives}
    held = [(found, _held_against(found, groups, shifts)) for found in groups if found.newest.configuration.against]
    pairs = [(ours, theirs) for ours, theirs in held if theirs is not None]
    judged: dict[tuple[str, str], dict[str, Comparison]] = {}
    for by in objectives:
        noise = pooled_noise(found.logs(by, compared_starts(looks)) for found in groups)
        # Where a ladder was left early its best rung is not known, so there is nothing to compare with. What has a rung
        # of its own, and what follows the ladder, was measured whatever the ladder brought.
        known = [pair for pair in pairs if not any(side.best_unknown(by) for side in pair)]
        for comparison in compare(known, by, noise, shifts=shifts[by.name], looks=looks):
            judged.setdefault(comparison.ours.key, {})[by.name] = comparison
    return [_experiment(ours, theirs, judged.get(ours.key, {})) for ours, theirs in held]


def _held_against(found: Starts, groups: Iterable[Starts], shifts: Mapping[str, Shifts]) -> Starts | None:
    """What a configuration is held against: measured on its own host, else on one that it can be compared with."""
    against = found.newest.configuration.against
    named = [other for other in groups if other.name == against]
    own = next((other for other in named if other.host == found.host), None)
    if own is not None and own.measured:
        return own
    alike = [
        other
        for other in named
        if other.measured and any(between.comparable(found.host, other.host) for between in shifts.values())
    ]
    return max(alike, key=lambda other: len(other.measured), default=own)


def _experiment(ours: Starts, theirs: Starts | None, by_objective: Mapping[str, Comparison]) -> dict[str, Any]:
    configuration = ours.newest.configuration
    found: dict[str, Any] = {
        "configuration": configuration.name,
        "against": configuration.against,
        "hypothesis": configuration.hypothesis,
        "host": ours.host,
        "against_host": theirs.host if theirs else None,
        "changes": [],
        "ignored": [],
        "due_to": None,
        "confounded_by": [],
        "claims": [asdict(claim) for claim in claims(configuration.hypothesis)],
        "effect": {},
        "starts": [len(ours.measured), len(theirs.measured) if theirs else 0],
        "verdict": "undecided",
        "more_starts": None,
    }
    if theirs is None:
        return found | {"sentence": f"{configuration.against} was not measured; there is nothing to hold it against."}
    found["changes"], found["ignored"] = changed(theirs.newest, ours.newest)
    keys = causes(found["changes"])
    found["due_to"] = keys[0] if len(keys) == 1 else None
    found["confounded_by"] = keys if len(keys) > 1 else []
    found["effect"] = {name: _effect(comparison) for name, comparison in by_objective.items()}
    # An effect that several changes may have made says nothing about any one of them.
    if not found["confounded_by"]:
        found["verdict"], found["more_starts"] = judge(claims(configuration.hypothesis), by_objective)
    return found | {"sentence": _sentence(ours, theirs, found, by_objective)}


def changed(before: Record, after: Record) -> tuple[list[tuple[str, Any, Any]], list[str]]:
    """(what differs and is read by the engine, what differs and is not read).

    A different release or driver is a change too: an effect may be due to it.
    """
    told, ignored = settings_changed(before, after)
    for key, old, new in (
        ("engine version", before.engine.version, after.engine.version),
        ("driver", before.host.driver, after.host.driver),
    ):
        if old and new and old != new:
            told.append((key, old, new))
    return told, ignored


def settings_changed(before: Record, after: Record) -> tuple[list[tuple[str, Any, Any]], list[str]]:
    """As `changed`, of what the configurations set alone. What spells out the engine's own default is no change."""
    changes = difference(_settings(before), _settings(after))
    changes = [
        (key, old, new)
        for key, old, new in changes
        if not (_left_out(key, old, new, before, after) or _left_out(key, new, old, after, before))
    ]
    unread = unread_flags(after)
    return [change for change in changes if change[0] not in unread], [c[0] for c in changes if c[0] in unread]


def _left_out(key: str, unset: Any, value: Any, without: Record, with_it: Record) -> bool:
    """Whether one side leaves out what the other sets to the default of its release."""
    if unset is not None or key not in with_it.configuration.engine:
        return False
    if flag_name(key) in without.configuration.arguments:
        return False  # its host sets it
    try:
        return is_default(key, value, with_it.engine.version)
    except ValueError:
        return False


def causes(changes: Sequence[tuple[str, Any, Any]]) -> list[str]:
    """The changes as causes: keys that cannot change alone are one, such as tp_size 8 to 1 with pp_size 1 to 8."""
    keys = [change[0] for change in changes]
    for together, name in _TOGETHER:
        sizes = [(old or 1, new or 1) for key, old, new in changes if key in together]
        whole = len(sizes) == len(together) and all(type(n) in (int, bool) for pair in sizes for n in pair)
        if whole and (name != _SPLIT or math.prod(a for a, _ in sizes) == math.prod(b for _, b in sizes)):
            first = min(keys.index(key) for key in together)
            keys = [
                name if place == first else key
                for place, key in enumerate(keys)
                if place == first or key not in together
            ]
    return keys


def unread_flags(record: Record) -> frozenset[str]:
    """Flags that the record's engine parses and reads nowhere; none where the release is not known."""
    try:
        return dead_flags(record.engine.version)
    except ValueError:
        return frozenset()


def _settings(record: Record) -> dict[str, Any]:
    return {"engine": record.configuration.engine, "environment": record.configuration.environment}


def _effect(comparison: Comparison) -> dict[str, Any]:
    low, high = comparison.interval
    return {
        "ratio": comparison.effect.ratio,
        "low": low,
        "high": high,
        "assumed": comparison.noise.assumed,
        "verdict": comparison.verdict,
        "detectable": comparison.effect.detectable(comparison.level),
        "more_starts": comparison.more_starts if comparison.verdict == "undecided" else None,
    }


def judge(said: Iterable[Claim], by_objective: Mapping[str, Comparison]) -> tuple[str, int | None]:
    """(verdict, further starts of each side that should settle it): all claims must hold, and one that fails refutes.

    A claim fails when its interval leaves no room for more than 2 % in the claimed direction; that something stays as
    it is fails when it does not, and holds when it is a tie; that it is not worse holds when the interval leaves no
    room for a loss of more than 2 %.
    """
    verdicts, wanted = [], []
    for claim in said:
        comparison = by_objective.get(claim.objective)
        verdicts.append(_claim_verdict(claim, comparison) if comparison else "undecided")
        if comparison and verdicts[-1] == "undecided":
            wanted.append(_starts_until_judged(claim, comparison))
    if "refuted" in verdicts:
        return "refuted", None
    if verdicts and all(found == "supported" for found in verdicts):
        return "supported", None
    known = [more for more in wanted if more is not None]
    return "undecided", max(known) if known and len(known) == len(wanted) else None


def _claim_verdict(claim: Claim, comparison: Comparison) -> str:
    return _claim_by(claim, comparison.by, *comparison.interval)


def _starts_until_judged(claim: Claim, comparison: Comparison) -> int | None:
    return comparison.starts_until(lambda low, high: _claim_by(claim, comparison.by, low, high) != "undecided")


def _claim_by(claim: Claim, by: Objective, low: float, high: float) -> str:
    """The verdict on a claim by an interval of the ratio."""
    if claim.better is None:
        return {"tie": "supported", "undecided": "undecided"}.get(verdict(low, high), "refuted")
    # Turned so that the claimed direction is up.
    if claim.better != by.more_is_better:
        low, high = 1 / high, 1 / low
    if claim.denied:
        return "supported" if high <= 1 + TIE else "refuted" if low > 1 + TIE else "undecided"
    return "refuted" if high <= 1 + TIE else "supported" if low > 1 else "undecided"


def _sentence(ours: Starts, theirs: Starts, found: Mapping[str, Any], by_objective: Mapping[str, Comparison]) -> str:
    sentence = f"{_differing(found, theirs)}."
    for side in (ours, theirs):
        if not side.measured:
            why = _NO_EFFECT.get(side.newest.outcome, "has no valid point")
            return f"{sentence} {side.name} {why}, so there is no effect to see."
    for side in (ours, theirs):
        if side.cut_short:
            sentence += f" The ladder of {side.name} was left early: {side.cut_short.reason}"
    if not by_objective:
        return f"{sentence} No objective was measured on both sides."
    if ours.host != theirs.host:
        sentence += f" {theirs.name} was measured on {theirs.host}; what both hosts measured corrects the difference."
    effects = [f"{name.replace('_', ' ')} {_told(c)}" for name, c in by_objective.items()]
    if found["due_to"]:
        sentence += f" The effect is due to {found['due_to']}: {', '.join(effects)}."
    elif found["confounded_by"]:
        sentence += f" The effect ({', '.join(effects)}) is confounded by {listed(found['confounded_by'])}."
    else:
        sentence += f" What is seen is noise: {', '.join(effects)}."
    return f"{sentence} {_verdict_sentence(found, by_objective)}"


def _differing(found: Mapping[str, Any], theirs: Starts) -> str:
    changes, ignored = found["changes"], found["ignored"]
    count = len(changes) + len(ignored)
    number = _NUMBERS[count] if count < len(_NUMBERS) else str(count)
    if not count:
        return f"Nothing differs from {theirs.name}"
    keys = [f"{key} {shown(before)} to {shown(after)}" for key, before, after in changes]
    parts = ([listed(keys)] if keys else []) + (
        [f"{listed(ignored)}, which the engine does not read"] if ignored else []
    )
    return f"{number} key{'s differ' if count > 1 else ' differs'} from {theirs.name}: {'; '.join(parts)}"


def _told(comparison: Comparison) -> str:
    low, high = comparison.interval
    return f"{comparison.effect.ratio - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"


def _verdict_sentence(found: Mapping[str, Any], by_objective: Mapping[str, Comparison]) -> str:
    basis = _basis(by_objective)
    if found["verdict"] != "undecided":
        return f"The hypothesis is {found['verdict']}.{basis}"
    if found["confounded_by"]:
        return f"Undecided however often it is repeated: change one at a time.{basis}"
    if not found["hypothesis"]:
        return f"There is no hypothesis to judge.{basis}"
    if not found["claims"]:
        return f"Undecided: the hypothesis names no objective that it makes better or worse.{basis}"
    seen = [c for c in by_objective.values() if c.by.name in {claim["objective"] for claim in found["claims"]}]
    if not seen:
        return f"Undecided: what the hypothesis speaks of was not measured on both sides.{basis}"
    reach = max(c.effect.detectable(c.level) for c in seen)
    if any(c.noise.assumed for c in seen):
        wanted = "one more start of each tells the noise"
    else:
        wanted = _what_settles(found["more_starts"], min(seen, key=lambda c: c.looks_left))
    return f"Undecided: a difference of {reach:.1%} would have been seen; {wanted}.{basis}"


def _what_settles(more: int | None, comparison: Comparison) -> str:
    """So many further starts of each, and what kind of campaign makes them."""
    if not more:
        return "take them as equal"
    starts = f"{more} more start{'s' if more != 1 else ''} of each"
    if more <= comparison.looks_left:
        return f"{starts} should settle it"
    looks = min(comparison.effect.starts) + more - 1
    if looks <= LOOKS:
        return f"{starts} should settle it, in a campaign of its own with looks={looks}"
    return f"{starts} would settle it, more than any campaign compares: take them as equal"


def _basis(by_objective: Mapping[str, Comparison]) -> str:
    """What the intervals rest on: so many starts, and for which of them the noise is only assumed."""
    assumed = [name for name, comparison in by_objective.items() if comparison.noise.assumed]
    if len(assumed) == len(by_objective):
        return f" One start each: the interval assumes {ASSUMED_NOISE * 100:.0f} % between starts."
    sides = zip(*(comparison.effect.starts for comparison in by_objective.values()), strict=True)
    basis = " From {} and {} starts.".format(*map(max, sides))
    if assumed:
        names = listed([name.replace("_", " ") for name in assumed])
        basis += f" The interval of {names} assumes {ASSUMED_NOISE * 100:.0f} % between starts, from one start each."
    return basis


def listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else "nothing"


def shown(value: Any) -> str:
    return "unset" if value is None else str(value)
