"""Names and values that hold a secret. What they hold belongs into no unit, command line, record or report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NAME = re.compile(
    r"(^|[-_])(api[-_]?key|access[-_]?key|private[-_]?key|secret([-_]key)?|passw(or)?d|passphrase|credentials?"
    r"|authorization|(?<!per[-_])(?<!first[-_])token)$",
    re.IGNORECASE,
)
_CREDENTIALS = re.compile(r"\w+://[^/@\s]+@")

FLAGS = ("api_key", "admin_api_key", "ssl_keyfile_password")
"""Flags of the engine that hold a secret, which it shows in its log, its process list and /server_info."""


def is_secret(name: str) -> bool:
    """Whether a flag or variable of this name may hold a secret: a key, a password, an access token."""
    return bool(_NAME.search(name))


def has_credentials(value: Any) -> bool:
    """Whether there is a URL with a user or a password in it."""
    return bool(_CREDENTIALS.search(str(value)))


def secret_variable(environment: Mapping[str, Any]) -> str | None:
    """The first variable that holds a secret, by its name or as a URL with a password; None where none does."""
    return next(
        (str(name) for name, value in environment.items() if is_secret(str(name)) or has_credentials(value)),
        None,
    )
