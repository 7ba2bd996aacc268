"""What stands behind `-e`, handed on in files: every user of a machine sees the command lines on it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_VAULT = "$ANSIBLE_VAULT;"


class ExtraError(ValueError):
    """What stands behind `-e` is neither key=value nor a file of variables."""


class _Loader(yaml.SafeLoader):
    """YAML as Ansible takes it; a value with a tag (`!vault`, `!unsafe`) is Ansible's to read, and None here."""


_Loader.add_multi_constructor("!", lambda loader, suffix, node: None)


def readable(extra: Sequence[str]) -> dict[str, Any]:
    """The variables of `key=value` and of `@file.yml`, as far as they can be read here: nothing of a vault.

    Raises:
        ExtraError: one is neither.
    """
    found: dict[str, Any] = {}
    for pair in extra:
        if pair.startswith("@"):
            found |= {key: value for key, value in _in_file(_path(pair)).items() if value is not None}
            continue
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ExtraError(f"'{pair}' is not key=value.")
        found[key] = value
    return found


def in_files(extra: Sequence[str], variables: Mapping[str, Any], folder: Path) -> list[str]:
    """ansible-playbook's words for what stands behind `-e`, in its order, and for variables that win over it.

    A file is handed on as it is; what is no file yet is written into `folder`, for nobody else to read.
    """
    words: list[str] = []
    for number, given in enumerate([*extra, *([variables] if variables else [])]):
        if isinstance(given, str) and given.startswith("@"):
            path = _path(given)
        else:
            path = folder / f"variables-{number}.json"
            path.touch(0o600, exist_ok=False)
            path.write_text(json.dumps(readable([given]) if isinstance(given, str) else dict(given)), encoding="utf-8")
        words += ["-e", f"@{path}"]
    return words


def _path(pair: str) -> Path:
    # The playbooks run in the project's folder.
    return Path(pair[1:]).expanduser().absolute()


def _in_file(path: Path) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():
            # Ansible reads it once more, and a sweep that asks twice.
            raise ExtraError(f"{path} is no regular file.")
        text = path.read_text(encoding="utf-8")
        told = {} if text.startswith(_VAULT) else yaml.load(text, _Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ExtraError(f"{path} cannot be read: {error}") from None
    if not isinstance(told, dict):
        raise ExtraError(f"{path} holds no mapping of variables.")
    return told
