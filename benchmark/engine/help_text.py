"""What an installed engine itself says of its flags (`--help`), held against what flags.json says of its release."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .flags import flag_table, resolve_release

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_HEAD = re.compile(r"^ {1,4}(-{1,2}[A-Za-z].*)$")
"""argparse starts an option at column 2, and its help at column 24 or on the next line."""
_NOT_FLAGS = frozenset({"-h", "--help"})


class NoHelp(ValueError):  # noqa: N818  (it is what is said, as UnknownModel is)
    """A text that is no argparse help; the text says what it was."""


@dataclass(frozen=True)
class HelpFlag:
    """A flag as argparse prints it."""

    takes_value: bool
    choices: tuple[str, ...] = ()
    several: bool = False
    """Takes a list of values."""


@dataclass(frozen=True)
class Differences:
    """Where the installed engine's command line is not what flags.json says; all empty where they agree."""

    release: str
    """The release that flags.json was asked for: the installed one, or the nearest known one below it."""
    missing: tuple[str, ...]
    """Flags that flags.json has and the engine does not offer."""
    unexpected: tuple[str, ...]
    """Flags that the engine offers and flags.json does not have: a configuration cannot use them."""
    changed: tuple[str, ...]
    """Sentences: a flag whose value or choices differ."""

    @property
    def sentence(self) -> str:
        if not (self.missing or self.unexpected or self.changed):
            return f"The engine's flags are those of {self.release}."
        parts = []
        if self.missing:
            parts.append(f"it lacks {_some(self.missing)}")
        if self.unexpected:
            parts.append(f"it also has {_some(self.unexpected)}")
        if self.changed:
            parts.append(_some(self.changed))
        return f"The engine's flags differ from those of {self.release}: {'; '.join(parts)}."


def _some(names: tuple[str, ...], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def parse_help(text: str) -> dict[str, HelpFlag]:
    """The option list of an argparse help: {"--tp-size": HelpFlag(takes_value=True), ...}, each alias by itself.

    Raises:
        NoHelp: no option is in the text (a traceback, an empty answer).
    """
    flags: dict[str, HelpFlag] = {}
    for line in _ESCAPE.sub("", text).splitlines():
        head = _HEAD.match(line)
        if head is None:
            continue
        # The help may follow on the same line, two spaces away.
        invocation = re.split(r" {2,}", head[1], maxsplit=1)[0]
        flags.update(_invocation(invocation))
    if not flags:
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing")
        raise NoHelp(f"That is not the help of a command: {last[:200]}")
    return {name: flag for name, flag in flags.items() if name not in _NOT_FLAGS}


def _invocation(text: str) -> dict[str, HelpFlag]:
    """`-q X, --quantization X` -> both names. From Python 3.13 on the value stands behind the last name only."""
    parts = re.split(r", (?=-)", text)
    values = [part.partition(" ")[2].strip() for part in parts]
    flag = _value(next((value for value in reversed(values) if value), ""))
    return {part.partition(" ")[0]: flag for part in parts}


def _value(text: str) -> HelpFlag:
    choices = re.match(r"\[?\{([^}]*)\}", text)
    return HelpFlag(
        takes_value=bool(text),
        choices=tuple(choices[1].split(",")) if choices else (),
        several="..." in text,
    )


def compare_help(text: str, release: str) -> Differences:
    """Hold an engine's help against the flag table of its release.

    A flag that is hidden or deprecated need not be in the help, and only long names are compared.

    Raises:
        NoHelp: the text is no help.
        flags.FlagError: the release is no version, or older than any known one.
    """
    said = {name: flag for name, flag in parse_help(text).items() if name.startswith("--")}
    table = flag_table(release)
    shown = {name for name, spec in table.items() if not (spec.get("deprecated") or spec.get("hidden"))}
    shared = [name for name in said if name in table]
    return Differences(
        release=resolve_release(release),
        missing=tuple(sorted(shown - said.keys())),
        unexpected=tuple(sorted(name for name in said if name not in table)),
        changed=tuple(sentence for name in sorted(shared) if (sentence := _change(name, said[name], table[name]))),
    )


def _change(name: str, said: HelpFlag, spec: Mapping[str, Any]) -> str | None:
    if spec.get("deprecated"):
        return None
    if said.takes_value and spec["kind"] == "switch":
        return f"{name} takes a value"
    if not said.takes_value and spec["kind"] != "switch":
        return f"{name} takes no value"
    known, offered = set(map(str, spec.get("choices") or ())), set(said.choices)
    if known and offered and known != offered:
        gone, new = sorted(known - offered), sorted(offered - known)
        words = [f"no longer {', '.join(gone)}"] if gone else []
        words += [f"also {', '.join(new)}"] if new else []
        return f"{name} takes {' and '.join(words)}"
    return None
