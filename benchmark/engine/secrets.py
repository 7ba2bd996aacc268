"""Names and values that hold a secret. What they hold belongs into no unit, command line, record or report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# A tokenizer's `eos_token`, and counts: `per_token`, `first_token`.
_NO_ACCESS = ("per", "first", "bos", "eos", "pad", "unk", "sep", "cls", "mask", "image", "video", "audio", "stop")
# Of what lies in a cache or a table, and what anybody may read.
_NO_LOCK = ("CACHE", "SORT", "PUBLIC", "PRIMARY", "FOREIGN", "PARTITION", "HASH", "GROUP", "ROUTING", "MAP", "DICT")
# Of a compiler or a model.
_NO_PASSWORD = (
    "forward",
    "backward",
    "compile",
    "compiler",
    "fusion",
    "first",
    "second",
    "single",
    "multi",
    "per",
    "one",
)


def _none_of(words: tuple[str, ...]) -> str:
    return "".join(rf"(?<!{word}[-_])" for word in words)


_NAME = re.compile(
    r"(^|[-_])(secret([-_]key)?|passw(or)?d|passphrase|credentials?|authorization|connection[-_]string"
    r"|(api|access|private|account|storage|signing|encryption|master|shared|session|ssh|license)[-_]?key"
    r"|(hf|hub|api|access|auth|bearer|refresh|user|github|gitlab|registry)[-_]tokens"
    rf"|{_none_of(_NO_ACCESS)}token)$"
    rf"|[-_](pwd|pat|{_none_of(_NO_PASSWORD)}pass)$"
    # Of variables any key: in free text `key: value` is a mapping's.
    rf"|(?-i:[A-Z0-9]_{_none_of(_NO_LOCK)}KEY$)"
    r"|(api[-_]?key|secret|passw(or)?d)$",
    re.IGNORECASE,
)
# Up to the last @: a password may hold one. A bounded scheme, so that a word of any length is read once.
_CREDENTIALS = re.compile(r"(\w{1,40}://)[^/\s]+@")

REMOVED = "REMOVED"
"""What stands where a secret stood."""
_FLAG = re.compile(r"""(?<![\w-])(--?[A-Za-z][\w-]{0,200})(?:\s+|["'],\s*)(?!--)""")
_NAMED = re.compile(r"""(?<![\w-])-{0,2}([A-Za-z_][\w-]{0,200})\\?["']?\s*[=:]\s*""")
_VALUE = re.compile(
    r"""(?P<escaped>\\"[^"\\]*\\")|(?P<double>"(?:[^"\\]|\\.)*")|(?P<single>'(?:[^'\\]|\\.)*')"""
    r"""|(?:Basic|Bearer|Digest|Token|Negotiate)\s+[^\s,"']+|[^\s,"']+"""
)
_BY_ITSELF = re.compile(
    # With a digit or a capital: `hf_checkpoints` is a folder.
    r"\b(hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[opsu]_[A-Za-z0-9]{16,}|AKIA[A-Z0-9]{12,}"
    r"|github_pat_\w{16,}|glpat-[\w-]{8,}|nvapi-[\w-]{8,}|xox[a-z]-[\w-]{8,}"
    r"|(?:Bearer|Basic)\s+[\w.~+/=-]{6,})"
)
_PATH = re.compile(r"/[\w./+-]*")
"""A folder may be called as a token looks; nobody keeps one in its name."""
_SWITCHES = ("", "0", "1", "true", "false")
"""What a variable that only turns something on or off holds: HF_HUB_DISABLE_IMPLICIT_TOKEN."""
_NOTHING = ("None", "null", "True", "False", "true", "false", "''", '""')

FLAGS = ("api_key", "admin_api_key", "ssl_keyfile_password")
"""Flags of the engine that hold a secret, which it shows in its log, its process list and /server_info."""


def is_secret(name: str) -> bool:
    """Whether a flag or variable of this name may hold a secret: a key, a password, an access token."""
    return bool(_NAME.search(name))


def has_credentials(value: Any) -> bool:
    """Whether there is a URL with a user or a password in it."""
    return bool(_CREDENTIALS.search(str(value)))


def without_credentials(text: str) -> str:
    """`https://user:password@host` without what stands before the @."""
    return _CREDENTIALS.sub(rf"\g<1>{REMOVED}@", text)


def holds_secret(value: Any) -> bool:
    """Whether a secret is in a value: a URL with a password, a key of a mapping that is named like one, a token."""
    text = str(value)
    return masked(text) != text and not _PATH.fullmatch(text)


def secret_variable(environment: Mapping[str, Any]) -> str | None:
    """The first variable that holds a secret, by its name or by its value; None where none does."""
    return next(
        (
            str(name)
            for name, value in environment.items()
            if (is_secret(str(name)) and str(value).lower() not in _SWITCHES) or holds_secret(value)
        ),
        None,
    )


def masked(text: str) -> str:
    """Free text (a log line, a command line, an answer) without the values of what is named like a secret.

    Flags and variables in each spelling (`--x v`, `--x=v`, `X=v`, `"x": "v"`, `X-Api-Key: v`), credentials in a URL,
    and what looks like a token by itself. Counts of tokens stay: `#new-token: 8192`.
    """
    for pattern in (_FLAG, _NAMED):
        text = _without_values(pattern, text)
    return _BY_ITSELF.sub(REMOVED, without_credentials(text))


def _without_values(pattern: re.Pattern[str], text: str) -> str:
    """The text with REMOVED for the value behind each name that the pattern finds and that is a secret's."""
    parts, done = [], 0
    for found in pattern.finditer(text):
        name, value = found[1], _VALUE.match(text, found.end())
        if found.start() < done or value is None or not is_secret(name) or _tells_nothing(name, value[0]):
            continue
        quote = {"escaped": '\\"', "double": '"', "single": "'"}.get(value.lastgroup or "", "")
        parts += [text[done : value.start()], quote, REMOVED, quote]
        done = value.end()
    return "".join([*parts, text[done:]])


def _tells_nothing(name: str, value: str) -> bool:
    count = name.lower().endswith("token") and value.strip("()[]{}").replace(".", "", 1).isdigit()
    return count or value in _NOTHING or value.strip("\\\"'").startswith(REMOVED)
