"""SGLang's command line of one release, rebuilt from the flag tables in `benchmark.engine.flags`."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.engine import flags

_HUMAN_UNITS = {"k": 1024, "m": 1024 * 1024}


def human_integer(text: str) -> int:
    """`8192`, `-1`, `128K` or `1M`, as SGLang reads it.

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    found = re.fullmatch(r"\s*(-?\d+)\s*([kKmM]?)\s*", text)
    if not found:
        raise argparse.ArgumentTypeError(f"invalid int value: '{text}'")
    return int(found.group(1)) * _HUMAN_UNITS.get(found.group(2).lower(), 1)


_TYPES: dict[str, Any] = {"int": human_integer, "float": float}


@dataclass(frozen=True)
class ServerArguments:
    """A parsed command line: every setting of the release, and which of them were given."""

    values: dict[str, Any]
    given: dict[str, Any]
    release: str

    def __getitem__(self, key: str) -> Any:
        return self.values.get(key)

    def engine(self) -> dict[str, Any]:
        """The given settings as a configuration's `engine` mapping."""
        return dict(self.given)

    def shown(self, resolved: Mapping[str, Any] | None = None) -> str:
        """The log line's text: ServerArgs(model_path='...', ...). Secrets stand in it, as in the engine's.

        `resolved` are settings that the engine works out before it prints them.
        """
        values = self.values | dict(resolved or {})
        return "ServerArgs(" + ", ".join(f"{key}={value!r}" for key, value in values.items()) + ")"


def build_parser(release: str) -> argparse.ArgumentParser:
    """The parser of a release; each alias leads to the same destination as its main name."""
    table = flags.flag_table(release)
    names: dict[str, list[str]] = {}
    for flag, spec in table.items():
        names.setdefault(spec.get("primary", flag), []).append(flag)
    parser = argparse.ArgumentParser(prog="sglang serve", allow_abbrev=True)
    for primary, aliases in names.items():
        spec = table.get(primary) or table[aliases[0]]
        negative = f"--no-{primary.removeprefix('--')}"
        ordered = [primary, *(alias for alias in aliases if alias not in (primary, negative))]
        options = _options(spec)
        if negative in aliases:
            options["action"] = argparse.BooleanOptionalAction
        parser.add_argument(
            *ordered,
            dest=flags.canonical_key(primary.lstrip("-").replace("-", "_")),
            required=primary == "--model-path",
            help=argparse.SUPPRESS if spec.get("hidden") else None,
            **options,
        )
    return parser


def _options(spec: dict[str, Any]) -> dict[str, Any]:
    kind = spec["kind"]
    if kind == "switch":
        return {"action": "store_true", "default": argparse.SUPPRESS}
    options: dict[str, Any] = {"default": argparse.SUPPRESS}
    if kind in _TYPES:
        options["type"] = _TYPES[kind]
    if kind == "list":
        options["nargs"] = "*"
    if spec.get("choices") and kind != "list":
        options["choices"] = spec["choices"]
    return options


def parse_arguments(arguments: Sequence[str], release: str) -> ServerArguments:
    """Parses as the engine does; argparse prints its usage and exits 2 on what the release does not know.

    Raises:
        SystemExit: 2 for a refused command line, 0 for --help.
    """
    parser = build_parser(release)
    given = vars(parser.parse_args(list(arguments)))
    values: dict[str, Any] = {}
    for flag, spec in flags.flag_table(release).items():
        key = flags.canonical_key(flag.lstrip("-").replace("-", "_"))
        default = spec.get("default", False if spec["kind"] == "switch" else None)
        if values.get(key) is None:
            values[key] = default
    values |= given
    for key, value in _DEFAULTS.items():
        if values.get(key) is None:
            values[key] = value
    values["tokenizer_path"] = values.get("tokenizer_path") or values["model_path"]
    values["served_model_name"] = values.get("served_model_name") or values["model_path"]
    return ServerArguments(values, given, release)


# Settings whose default is computed by the engine, or that the tables leave out.
_DEFAULTS = {
    "host": "127.0.0.1",
    "port": 30000,
    "tp_size": 1,
    "pp_size": 1,
    "ep_size": 1,
    "dp_size": 1,
    "stream_interval": 1,
    "decode_log_interval": 40,
    "schedule_conservativeness": 1.0,
    "max_prefill_tokens": 16384,
    "log_level": "info",
    "page_size": 1,
}


def json_text(value: Any) -> str:
    """Compact JSON, as the engine's answers are written."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
