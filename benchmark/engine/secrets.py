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
    "last",
    "single",
    "multi",
    "per",
    "one",
)


def _none_of(words: tuple[str, ...]) -> str:
    return "".join(rf"(?<!{word}[-_])" for word in words)


_NAME = re.compile(
    r"((^|[-_])(secret([-_]keys?)?|passw(or)?ds?|passphrase|credentials?|authorization|connection[-_]string"
    r"|(api|access|private|account|storage|signing|encryption|master|shared|session|ssh|license)[-_]?keys?"
    r"|(hf|hub|api|access|auth|bearer|refresh|user|github|gitlab|registry)[-_]tokens"
    rf"|{_none_of(_NO_ACCESS)}token)"
    rf"|[-_](pwd|pat|{_none_of(_NO_PASSWORD)}pass)"
    # Of variables any key: in free text `key: value` is a mapping's.
    rf"|(?-i:[A-Z0-9]_{_none_of(_NO_LOCK)}KEY|(^|[A-Z0-9]_)(AUTH|BEARER|JWT|COOKIES?|DSN|WEBHOOK(_URL)?))"
    r"|(api[-_]?keys?|secrets?|passw(or)?ds?))"
    # One of several: HF_TOKEN_1.
    r"([-_]\d{1,3})?$",
    re.IGNORECASE,
)
# Up to the last @: a password may hold one. A bounded scheme, so that a word of any length is read once.
_CREDENTIALS = re.compile(r"(\w{1,40}://)[^/\s]+@")

REMOVED = "REMOVED"
"""What stands where a secret stood."""
_FLAG = re.compile(r"""(?<![\w-])(--?[A-Za-z][\w-]{0,200})(?:\s+|["'],\s*)(?!--)""")
_NAMED = re.compile(r"""(?<![\w-])-{0,2}([A-Za-z_][\w-]{0,200})\\?["']?\s*[=:]\s*""")
_VALUE = re.compile(
    r"""[bru]{0,2}(?:(?P<escaped>\\"[^"\\]*\\")|(?P<double>"(?:[^"\\]|\\.)*")|(?P<single>'(?:[^'\\]|\\.)*'))"""
    r"""|(?P<list>\[[^\]]{0,4000}\])|(?P<mapping>\{[^}]{0,4000}\})|(?P<tuple>\([^)]{0,4000}\))"""
    r"""|(?:Basic|Bearer|Digest|Token|Negotiate)\s+[^\s,"']+|[^\s,"']+"""
)
_AROUND = {"escaped": ('\\"', '\\"'), "double": ('"', '"'), "single": ("'", "'")} | {
    "list": ("[", "]"),
    "mapping": ("{", "}"),
    "tuple": ("(", ")"),
}
_BY_ITSELF = re.compile(
    # With a digit or a capital: `hf_checkpoints` is a folder.
    r"\b(hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[opsu]_[A-Za-z0-9]{16,}|AKIA[A-Z0-9]{12,}"
    r"|github_pat_\w{16,}|glpat-[\w-]{8,}|nvapi-[\w-]{8,}|xox[a-z]-[\w-]{8,}"
    r"|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*|(?<=hooks\.slack\.com/services/)[\w/-]+"
    r"|(?:Bearer|Basic)\s+[\w.~+/=-]{6,})"
)
# What goes by other names: a header to the end of its line, a signed URL, `curl -u me:password` (1000:1000 is a user).
_ELSEWHERE = re.compile(
    r"""(?P<header>(?i:(?<![\w-])(?:set-)?cookie["']?\s*:(?!\s*b?["']?REMOVED)\s*(?:b?["'])?))[^\s"'][^\n"']*"""
    r"""|(?P<signed>(?i:[?&]sig|x-(?:amz|goog|oss)-signature)=)(?!REMOVED)[^&\s"']+"""
    r"""|(?P<user>(?<![\w-])(?:-u|--user|--proxy-user)(?:\s+|=|["'],\s*)["']?"""
    r"""(?!\d+:\d+(?!\w))[^\s:"'/]+:)(?!REMOVED)[^\s"']+"""
)
_PATH = re.compile(r"/[\w./+-]*")
"""A folder may be called as a token looks; nobody keeps one in its name."""
_IN_PROSE = re.compile(r"(\btokens?):(?=\s)", re.IGNORECASE)
_SWITCHES = ("", "0", "1", "true", "false")
"""What a variable that only turns something on or off holds: HF_HUB_DISABLE_IMPLICIT_TOKEN."""
_NOTHING = ("None", "null", "True", "False", "true", "false", "''", '""', "[]", "{}", "()")

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


def tells_secret(prose: Any) -> bool:
    """Whether a secret is in a sentence, in which `time per token: lower` is none."""
    return holds_secret(_IN_PROSE.sub(r"\1", str(prose or "")))


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
    text = _ELSEWHERE.sub(lambda found: f"{''.join(part or '' for part in found.groups())}{REMOVED}", text)
    return _BY_ITSELF.sub(REMOVED, without_credentials(text))


def _without_values(pattern: re.Pattern[str], text: str) -> str:
    """The text with REMOVED for the value behind each name that the pattern finds and that is a secret's."""
    parts, done = [], 0
    for found in pattern.finditer(text):
        name = found[1]
        if found.start() < done or not is_secret(name):
            continue
        value = _VALUE.match(text, found.end())
        if value is None or _tells_nothing(name, value[0]):
            continue
        # Before quotes may be a `b`.
        before, after = _AROUND.get(value.lastgroup or "", ("", ""))
        start = value.start(value.lastgroup) if value.lastgroup else value.start()
        parts += [text[done:start], before, REMOVED, after]
        done = value.end()
    return "".join([*parts, text[done:]])


def _tells_nothing(name: str, value: str) -> bool:
    # One count, or several, of which a bracket that is open may be all that there is.
    digits = value.strip("()[]{}").translate(str.maketrans("", "", "., "))
    count = name.lower().rstrip("-_0123456789").endswith("token") and digits.isdigit()
    return count or value in _NOTHING or value.strip("\\\"'[({").startswith(REMOVED)
