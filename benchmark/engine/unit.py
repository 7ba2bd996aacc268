"""Values as systemd reads them in a unit file (systemd.syntax(7), systemd.service(5), systemd.unit(5))."""

from __future__ import annotations

import unicodedata

ASK_TO_END = (
    '-/bin/sh -c \'[ -n "$$MAINPID" ] || exit 0; kill -TERM "$$MAINPID"; '
    'while kill -0 "$$MAINPID" 2>/dev/null; do sleep 0.2; done\''
)
"""ExecStop= of an engine: SIGTERM to its first process, which drains, and a wait for its end, which TimeoutStopSec=
bounds. With `KillMode=control-group` alone its schedulers would have the signal too, and they end at once."""


class UnitError(ValueError):
    """A value that a unit file cannot carry."""


def has_control_character(text: str) -> bool:
    """Whether it has what ends a line or rules a terminal: U+0000 to 001F, 007F to 009F, and Unicode's separators."""
    return any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in text)


def _quoted(text: str) -> str:
    if has_control_character(text):
        raise UnitError(f"{text!r} has a control character, which a unit file cannot carry. Take it out.")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def _word(text: str) -> str:
    if text and all(char.isalnum() or char in "-_./:,=+@" for char in text) and text.isascii():
        return text
    return _quoted(text)


def argument(value: object) -> str:
    """One word of ExecStart=, which arrives in the process as it was written.

    Raises:
        UnitError: it has a control character.
    """
    return _word(str(value)).replace("$", "$$")


def assignment(name: str, value: object) -> str:
    """One assignment of Environment=; there `$` has no meaning and `%` has.

    Raises:
        UnitError: it has a control character.
    """
    return _quoted(f"{name}={value}")


def optional_path(value: object) -> str:
    """One path of ReadWritePaths= and its like, that need not be there; `$` has no meaning.

    Raises:
        UnitError: it has a control character.
    """
    return _word(f"-{value}")
