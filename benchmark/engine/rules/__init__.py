"""May a configuration start? The engine's own rules, by release, each with its reason and a way out."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from .. import nccl
from ..flags import FlagError, canonical_key, plain_numbers, release_at_least, releases, resolve_release
from ..hardware import Host
from ..layout import Layout
from ..models import ModelShape
from ..verdict import SEVERITIES, Rule, Verdict
from . import command, contradictions, experts, parallel, pipeline, room, settings, transport
from .command import dead_flags
from .subject import Subject

__all__ = ["Rule", "UnknownRule", "Verdict", "check", "dead_flags", "explain", "rules"]

_SUBJECTS = (command, parallel, experts, pipeline, settings, contradictions, transport)


class UnknownRule(ValueError):  # noqa: N818  (a sibling of UnknownModel and UnknownHardware)
    """There is no rule of this id; the text names the nearest."""


def rules() -> tuple[Rule, ...]:
    """All rules, by subject."""
    return tuple(rule for subject in _SUBJECTS for rule in subject.RULES) + nccl.RULES + room.RULES


def explain(rule_id: str) -> Rule:
    """The rule of this id.

    Raises:
        UnknownRule: there is none.
    """
    by_id = {rule.id: rule for rule in rules()}
    if rule_id in by_id:
        return by_id[rule_id]
    near = difflib.get_close_matches(rule_id, by_id, n=3, cutoff=0.4)
    hint = f" The nearest: {', '.join(near)}." if near else ""
    raise UnknownRule(f"There is no rule '{rule_id}'.{hint}")


def check(configuration: Mapping[str, Any], shape: ModelShape | None, host: Host | None, release: str) -> list[Verdict]:
    """What the rules say about a resolved configuration, the gravest first.

    Without a shape the rules that need the model say nothing, without a host those that need the GPUs.
    """
    known, verdicts = _known_release(release)
    given = configuration.get("engine") or {}
    engine = {canonical_key(str(key)): value for key, value in plain_numbers(given, known).items()}
    if len(engine) < len(given):
        verdicts += command.twice(given, known)
    environment = dict(configuration.get("environment") or {})
    try:
        layout = Layout.from_engine(engine, known)
    except ValueError as error:
        # The command line's own verdict says it better, if there is one.
        subject = Subject(engine, environment, Layout(), shape, host, known, known == release)
        return verdicts + (list(command.check(subject)) or [command.refuse(str(error))])
    subject = Subject(engine, environment, layout, shape, host, known, known == release)
    for part in _SUBJECTS:
        found = list(part.check(subject))
        verdicts += found
        if part is parallel and any(verdict.rule == "width-positive" for verdict in found):
            break  # every other rule divides by the widths
    else:
        verdicts += nccl.normalise_environment(environment, layout, subject.gpus_there)[1]
    return sorted(verdicts, key=lambda verdict: SEVERITIES.index(verdict.severity))


def _known_release(release: str) -> tuple[str, list[Verdict]]:
    """A release whose command line is known, and a verdict if it is not the one that was asked for."""
    try:
        known = resolve_release(release)
    except FlagError as error:
        oldest, newest = releases()[0], releases()[-1]
        judged_by = oldest if release[:1].isdigit() and not release_at_least(release, oldest) else newest
        return judged_by, [command.unplaced(judged_by, str(error))]
    return known, [] if known == release else [command.released(release, known)]
