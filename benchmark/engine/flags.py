"""SGLang's command line, release by release: its flags, and a configuration as an argument list."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from importlib import resources
from typing import Any

from . import secrets
from .unit import has_control_character

KINDS = ("switch", "int", "float", "str", "list", "json")


class FlagError(ValueError):
    """A setting that the engine's command line does not have, or not with this value."""


@functools.cache
def _data() -> dict[str, Any]:
    return json.loads(resources.files(__package__).joinpath("flags.json").read_text(encoding="utf-8"))


@functools.cache
def releases() -> tuple[str, ...]:
    """The releases whose command line is known, oldest first."""
    return tuple(_data()["releases"])


def _version_key(release: str) -> tuple[int, ...]:
    """`0.5.10.post1` -> (0, 5, 10, 1); what is no number ends the key."""
    numbers = re.match(r"\d+(?:\.\d+)*", release)
    post = re.search(r"\.post(\d+)", release)
    parts = tuple(int(part) for part in numbers.group().split(".")) if numbers else ()
    return (*parts, int(post.group(1)) if post else 0)


def release_at_least(release: str, other: str) -> bool:
    """Whether `release` is `other` or newer: release_at_least("0.5.23", "0.5.9") is true."""
    return _version_key(release) >= _version_key(other)


@functools.cache
def resolve_release(release: str) -> str:
    """The known release that speaks for this one: itself, or the newest known one that is not newer.

    Raises:
        FlagError: not a version, or older than every known release.
    """
    if release in releases():
        return release
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?([.\-+]?\w+)*", release):
        raise FlagError(f"'{release}' is not an SGLang version. Known: {', '.join(releases())}.")
    older = [known for known in releases() if _version_key(known) <= _version_key(release)]
    if not older:
        raise FlagError(f"SGLang {release} is older than every release known here; the oldest is {releases()[0]}.")
    return older[-1]


@functools.cache
def flag_table(release: str) -> dict[str, dict[str, Any]]:
    """Flags of a release: {"--tp-size": {"kind": "int", "default": 1}, ...}.

    `kind` is one of KINDS; `choices`, `default`, `deprecated`, `hidden` (the engine's help leaves it out) and
    `primary` (this name is an alias, or the negative form, of that one) are there where they apply.
    """
    index = releases().index(resolve_release(release))
    return {
        flag: spec for flag, spans in _data()["flags"].items() for first, last, spec in spans if first <= index <= last
    }


def flag_name(key: str) -> str:
    """`tp_size` -> `--tp-size`."""
    return "--" + key.strip().lstrip("-").replace("_", "-")


@functools.cache
def canonical_key(key: str) -> str:
    """One spelling for a setting and its aliases: `tensor_parallel_size` -> `tp_size`.

    The spelling is the main one of the newest release that knows the flag.
    """
    flag = flag_name(key)
    for release in reversed(releases()):
        spec = flag_table(release).get(flag)
        if spec is not None:
            return spec.get("primary", flag).lstrip("-").replace("-", "_")
    return key.strip().lstrip("-").replace("-", "_")


def _nearest(flag: str, table: Mapping[str, Any]) -> str | None:
    extended = [name for name in table if name.startswith(flag + "-")]
    if extended:
        return min(extended, key=len)
    return next(iter(difflib.get_close_matches(flag, table, n=1, cutoff=0.6)), None)


def _refusal(flag: str, release: str, table: Mapping[str, Any]) -> FlagError:
    elsewhere = [known for known in releases() if flag in flag_table(known)]
    nearest = _nearest(flag, table)
    text = f"SGLang {release} has no flag {flag}"
    if elsewhere:
        text += (
            f" (it is in {elsewhere[0]} to {elsewhere[-1]})" if len(elsewhere) > 1 else f" (it is in {elsewhere[0]})"
        )
    text += f"; the nearest is {nearest}." if nearest else "."
    return FlagError(text)


def _bad_value(flag: str, value: Any, expected: str) -> FlagError:
    return FlagError(f"{flag} takes {expected}, not {json.dumps(value, default=str)}.")


_HUMAN_INTEGER = re.compile(r"-?\d+|\d+(?:\.\d+)?[kMGT]|\d+[KMGT]i")
"""As the engine's human_readable_int reads them (srt/utils/common.py): `128k` and `128Ki`, never `128K`."""

_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def human_integer(value: Any) -> Any:
    """`128k` -> 128000 and `128Ki` -> 131072, as the engine's human_readable_int; anything else as it is."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", value.strip()) if isinstance(value, str) else None
    if not match or ("." in match[1] and match[2].endswith("i")):
        return value
    return int(Decimal(match[1]) * _UNITS[match[2]])


def plain_numbers(engine: Mapping[str, Any], release: str) -> dict[str, Any]:
    """Settings with the numbers that the engine reads: those of whole-number flags without their units.

    Raises:
        FlagError: the release cannot be placed among the known ones.
    """
    table = flag_table(release)
    whole = {key for key in engine if (table.get(flag_name(str(key))) or {}).get("kind") == "int"}
    return {key: human_integer(value) if key in whole else value for key, value in engine.items()}


def _scalar(flag: str, value: Any, spec: Mapping[str, Any]) -> str:
    kind = spec["kind"]
    if isinstance(value, bool):
        raise _bad_value(flag, value, "a value")
    if kind == "int" and not _HUMAN_INTEGER.fullmatch(str(value)):
        raise _bad_value(flag, value, "a whole number")
    if kind == "float":
        try:
            float(value)
        except (TypeError, ValueError):
            raise _bad_value(flag, value, "a number") from None
    text = str(value)
    if has_control_character(text):
        raise _bad_value(flag, value, "a value without control characters")
    choices = spec.get("choices")
    if choices and text not in map(str, choices):
        near = difflib.get_close_matches(text, map(str, choices), n=1, cutoff=0.5)
        hint = f" The nearest is {near[0]}." if near else ""
        raise FlagError(f"{flag} is one of {', '.join(map(str, choices))}; it cannot be '{text}'.{hint}")
    return text


def flag_arguments(key: str, value: Any, release: str) -> list[str]:
    """One setting as arguments: ("tp_size", 8) -> ["--tp-size", "8"].

    `True` gives the bare flag; `False` and `None` give nothing; a list gives its values behind one flag; a
    mapping gives JSON.

    Raises:
        FlagError: the release has no such flag, or the flag cannot have this value.
    """
    flag = flag_name(key)
    table = flag_table(release)
    spec = table.get(flag)
    if spec is None and not flag.isprintable():
        raise FlagError(f"{flag!r} is no flag: it has a control character.")
    if spec is None:
        raise _refusal(flag, release, table)
    if value is None or value is False:
        return []
    if spec["kind"] == "switch":
        if value is not True:
            raise _bad_value(flag, value, "true or false")
        return [flag]
    if isinstance(value, Mapping):
        if spec["kind"] not in ("json", "str", "list"):
            raise _bad_value(flag, value, "a single value")
        return [flag, json.dumps(value, sort_keys=True, separators=(",", ":"))]
    if isinstance(value, (list, tuple)):
        if spec["kind"] != "list":
            raise _bad_value(flag, value, "a single value")
        return [flag, *(_scalar(flag, item, {"kind": "str"}) for item in value)] if value else []
    return [flag, _scalar(flag, value, spec)]


def is_default(key: str, value: Any, release: str) -> bool:
    """Whether a setting spells out what the release does without it: {"pp_size": 1}, or a switch that is off.

    Where the engine chooses for itself (its parser's default is None) no value is its default.

    Raises:
        FlagError: the release cannot be placed among the known ones.
    """
    if value is None or value is False:
        return True
    spec = flag_table(release).get(flag_name(key)) or {}
    default = spec.get("default")
    if default is None or isinstance(value, bool) != isinstance(default, bool):
        return False
    if spec["kind"] == "int":
        value = human_integer(value)
    return bool(value == default or str(value) == str(default))


def _refuse_secret(name: str, key: str, value: Any) -> None:
    if value is None:
        return
    if name in secrets.FLAGS or secrets.holds_secret(value):
        # An access token in a mapping of the loader's, a header, a URL with a password.
        what = "holds a secret" if name in secrets.FLAGS else "is given a secret"
        raise FlagError(
            f"{flag_name(key)} {what}: a command line stands in the unit, the process list, the engine's log and "
            "/server_info. Leave it out; put a proxy that asks for a key in front of the loopback address."
        )
    if name == "config":
        raise FlagError(
            f"{flag_name(key)} reads further flags from a file, which no record holds. Write them in a configuration."
        )


def launch_lines(engine: Mapping[str, Any], release: str, own: Mapping[str, Any] | None = None) -> list[list[str]]:
    """A configuration's command line, one flag with its values an entry.

    Args:
        engine: the configuration's settings.
        own: the host's: {"model_path", "served_model_name", "host", "port"}, first in the line, "further",
            settings that a configuration's own replace, and "node", those that only a node of several has.

    Raises:
        FlagError: as flag_arguments; two spellings of one flag are both set; or one holds a secret.
    """
    own = dict(own or {})
    further = dict(own.pop("further", None) or {})
    own.pop("group", None)
    node = own.pop("node", None) or {}
    if int(engine.get("nnodes") or 1) > 1:
        own |= node
    settings = {canonical_key(key) for key in engine}
    further = {key: value for key, value in further.items() if canonical_key(key) not in settings}
    seen: dict[str, str] = {}
    lines: list[list[str]] = []
    for key, value in [*own.items(), *engine.items(), *further.items()]:
        name = canonical_key(key)
        _refuse_secret(name, key, value)
        if name in seen:
            raise FlagError(f"{flag_name(seen[name])} and {flag_name(key)} are one flag; set only one of them.")
        seen[name] = key
        line = flag_arguments(key, value, release)
        if line:
            lines.append(line)
    return lines


def launch_arguments(engine: Mapping[str, Any], release: str, own: Mapping[str, Any] | None = None) -> list[str]:
    """As launch_lines, as one list of words."""
    return [word for line in launch_lines(engine, release, own) for word in line]
