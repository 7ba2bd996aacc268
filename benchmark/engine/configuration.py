"""Configurations: named sets of engine flags and environment that extend one another. Pure."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from . import secrets
from .flags import canonical_key
from .layout import Layout
from .nccl import normalise_environment, visible_gpus
from .verdict import Verdict

NAME = re.compile(r"[a-z][a-z0-9_]*")
ENTRY_KEYS = ("description", "extends", "against", "hypothesis", "abstract", "engine", "environment")

OWNED_BY_ROLES = {
    "host": "sglang_service_host",
    "port": "sglang_service_port",
    "model_path": "sglang_model_path",
    "tokenizer_path": "sglang_model_path",
    "served_model_name": "sglang_model_name",
    "dist_init_addr": "sglang_service_nodes",
    "node_rank": "sglang_service_nodes",
}
"""Settings of a host, not of a configuration -> the role default that holds them."""

_WHERE_IT_LISTENS = ("--host", "--port", "--served-model-name")

RESERVED = {
    "engine": "what the role sglang installed",
    "model": "what the role sglang_model found",
    "preflight": "what the role gpu_host saw",
}
"""Names whose host fact (`sglang_NAME.fact`) tells something else than a configuration's record."""

PLACES = ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CUDA_HOME", "HOME")
"""Variables that say where things lie. What lies there is told by the engine's release and environment."""


class ConfigurationError(ValueError):
    """A catalogue entry that cannot be used; the text names the entry and what to change."""


def normalise_name(name: str) -> str:
    """The catalogue's spelling of what a user typed: `EP8-tuned` -> `ep8_tuned`."""
    return str(name).strip().lower().replace("-", "_")


def merge_catalogues(*catalogues: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Several catalogues as one, later ones winning, each entry checked for its form.

    Raises:
        ConfigurationError: an entry's name, keys or values are not of the form of a catalogue entry.
    """
    merged: dict[str, dict[str, Any]] = {}
    for catalogue in catalogues:
        if catalogue is None:
            continue
        if not isinstance(catalogue, Mapping):
            raise ConfigurationError("The catalogue is not a mapping of names to configurations.")
        for name, entry in catalogue.items():
            merged[str(name)] = _checked(str(name), entry)
    return merged


def _checked(name: str, entry: Any) -> dict[str, Any]:
    where = f"Configuration '{name}'"
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"{where}: a name is lower-case letters, digits and underscores, a letter first.")
    if name in RESERVED:
        raise ConfigurationError(
            f"{where}: the host fact sglang_{name} tells {RESERVED[name]}, so the name is taken. Choose another."
        )
    if not isinstance(entry, Mapping):
        raise ConfigurationError(f"{where} is not a mapping with {', '.join(ENTRY_KEYS)}.")
    for key in entry:
        if key not in ENTRY_KEYS:
            near = difflib.get_close_matches(str(key), ENTRY_KEYS, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; known are {', '.join(ENTRY_KEYS)}."
            raise ConfigurationError(f"{where} has an unknown key '{key}'{hint}")
    for part in ("engine", "environment"):
        if not isinstance(entry.get(part) or {}, Mapping):
            raise ConfigurationError(f"{where}: '{part}' is not a mapping.")
    for key in entry.get("engine") or {}:
        _refuse_foreign(where, str(key))
    refuse_secrets(where, entry.get("environment") or {})
    for part in ("description", "hypothesis"):
        if secrets.tells_secret(entry.get(part)):
            raise ConfigurationError(
                f"{where}: its {part} holds what looks like a key, a token or a password, and stands in its unit, its "
                "record and the report. Take it out."
            )
    return dict(entry)


def refuse_secrets(where: str, environment: Mapping[str, Any]) -> None:
    """An engine's environment stands in its unit, its record and its report.

    Raises:
        ConfigurationError: a variable of it holds a secret; the text names it, and not its value.
    """
    if name := secrets.secret_variable(environment):
        raise ConfigurationError(
            f"{where} sets the variable '{name}', which holds a key, a token or a password: an engine's environment "
            "stands in its unit, its record and the report. Leave it out; a model that needs a token is fetched "
            "before, with sglang_model_token."
        )


def _refuse_foreign(where: str, key: str) -> None:
    name = canonical_key(key)
    if name in secrets.FLAGS:
        raise ConfigurationError(
            f"{where} sets '{key}': the engine shows its keys in its log, its process list and /server_info. "
            "Leave it out; put a proxy that asks for a key in front of the loopback address."
        )
    if name in OWNED_BY_ROLES:
        raise ConfigurationError(
            f"{where} sets '{key}', which belongs to the host, not to a configuration. "
            f"Set {OWNED_BY_ROLES[name]} in your inventory instead."
        )


def find_name(wanted: str, catalogue: Mapping[str, Mapping[str, Any]], *, abstract: bool = False) -> str:
    """The catalogue's name for what a user typed, dash or underscore.

    Raises:
        ConfigurationError: no such configuration, or it is abstract; names the nearest and lists them all.
    """
    name = normalise_name(wanted)
    if name in catalogue and (abstract or not catalogue[name].get("abstract")):
        return name
    runnable = [known for known, entry in catalogue.items() if not entry.get("abstract")]
    if name in catalogue:
        raise ConfigurationError(f"'{wanted}' is abstract: others extend it. Choose one of {', '.join(runnable)}.")
    near = difflib.get_close_matches(name, runnable, n=1, cutoff=0.5)
    hint = f" The nearest is '{near[0]}'." if near else ""
    raise ConfigurationError(f"There is no configuration '{wanted}'.{hint} There are {', '.join(runnable)}.")


def resolve(name: str, catalogue: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One flat configuration: its own settings over those of everything it extends.

    Returns:
        {"name", "description", "against", "hypothesis", "extends": [parents, nearest first],
        "engine": {...}, "environment": {...}}. A setting of `null` takes an inherited one away.

    Raises:
        ConfigurationError: an unknown parent, or a cycle, named with its whole chain.
    """
    chain = _chain(name, catalogue)
    engine: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    for entry in (catalogue[link] for link in reversed(chain)):
        _overlay(engine, {canonical_key(key): value for key, value in (entry.get("engine") or {}).items()})
        _overlay(environment, entry.get("environment") or {})
    own = catalogue[name]
    against = own.get("against")
    if against is not None and normalise_name(against) not in catalogue:
        raise ConfigurationError(f"Configuration '{name}' is held against '{against}', which is not in the catalogue.")
    return {
        "name": name,
        "description": str(own.get("description") or ""),
        "against": normalise_name(against) if against is not None else None,
        "hypothesis": own.get("hypothesis"),
        "extends": chain[1:],
        "engine": engine,
        "environment": environment,
    }


def _chain(name: str, catalogue: Mapping[str, Mapping[str, Any]]) -> list[str]:
    chain = [name]
    while (parent := catalogue[chain[-1]].get("extends")) is not None:
        parent = normalise_name(parent)
        if parent not in catalogue:
            near = difflib.get_close_matches(parent, catalogue, n=1)
            hint = f" The nearest is '{near[0]}'." if near else ""
            raise ConfigurationError(
                f"Configuration '{chain[-1]}' extends '{parent}', which is not in the catalogue.{hint}"
            )
        if parent in chain:
            loop = " -> ".join([*chain[chain.index(parent) :], parent])
            raise ConfigurationError(f"Configurations extend one another in a circle: {loop}. Take one 'extends' out.")
        chain.append(parent)
    return chain


def _overlay(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        if value is None:
            below.pop(key, None)
        else:
            below[key] = value


def launch_environment(
    environment: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    gpus: int | None = None,
) -> dict[str, str]:
    """A configuration's environment over the host's own, as text; empty values are left out, an inherited one too.

    Args:
        own: the host's, checked and rendered as the configuration's is.
        engine: the configuration's flags, whose groups a graph file of NCCL must suit.
        gpus: how many GPUs the host has, where that is known; the file describes those that the engine can see.

    Raises:
        ConfigurationError: NCCL or the engine would misread a value, two contradict each other, or one is a secret.
    """
    refuse_secrets("sglang_service_environment", own or {})
    rendered, verdicts = _environment(environment, own, engine, gpus)
    refused = [verdict for verdict in verdicts if verdict.severity == "reject"]
    if refused:
        raise ConfigurationError(f"{refused[0].sentence} {refused[0].advice}")
    return rendered


def measured_environment(environment: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> dict[str, str]:
    """What of the environments may change a measurement: all but where programs and libraries lie.

    Args:
        own: the host's, under the configuration's.
    """
    rendered, _ = _environment(environment, own, None)
    return {name: text for name, text in rendered.items() if name not in PLACES}


def measured_inputs(of: Mapping[str, Any]) -> dict[str, Any]:
    """Of the inputs of a measurement what may change it: not where the engine listens, nor under which name it serves,
    nor, where the revision of the model's files is known, in which folder they lie.

    Args:
        of: {"arguments": [words], "model": {"name", "path", "revision"}, "engine": {"name", "version", "environment"},
            and what else there is}; what this function returned comes back as it is.
    """
    of = dict(of)
    left_out = set(_WHERE_IT_LISTENS)
    if isinstance(model := of.get("model"), Mapping):
        revision = model.get("revision")
        of["model"] = {"revision": revision} if revision else {"path": model.get("path") or ""}
        left_out |= {"--model-path"} if revision else set()
    if isinstance(words := of.get("arguments"), list):
        pairs = zip(["", *words], words, strict=False)
        of["arguments"] = [word for before, word in pairs if before not in left_out and word not in left_out]
    if isinstance(engine := of.get("engine"), Mapping):
        of["engine"] = {key: value for key, value in engine.items() if value}
    return of


def environment_warnings(
    environment: Mapping[str, Any], own: Mapping[str, Any] | None = None, engine: Mapping[str, Any] | None = None
) -> list[str]:
    """What is taken as it was meant, or may be a mistake: `NCCL_P2P_LEVEL=5 is an old number that means SYS; ...`."""
    _, verdicts = _environment(environment, own, engine)
    return [f"{verdict.sentence} {verdict.advice}".strip() for verdict in verdicts if verdict.severity != "reject"]


def _environment(
    environment: Mapping[str, Any],
    own: Mapping[str, Any] | None,
    engine: Mapping[str, Any] | None,
    gpus: int | None = None,
) -> tuple[dict[str, str], list[Verdict]]:
    # An empty value of the configuration's takes the host's away.
    merged = {**(own or {}), **environment}
    layout = None
    if engine is not None:
        try:
            layout = Layout.from_engine(engine)
        except ValueError:
            layout = None  # another rule says what is wrong with the width
    there = [number for number in (gpus, visible_gpus(merged)) if number]
    nodes = max(layout.nnodes, 1) if layout else 1
    return normalise_environment(merged, layout, min(there) * nodes if there else None)


def runnable_names(catalogue: Mapping[str, Mapping[str, Any]], wanted: str | Iterable[str] | None = None) -> list[str]:
    """The configurations of a sweep: those named (`"ep8,ep4"` or a list), or all that are not abstract.

    Each is behind the one it is held against, so that a comparison can be read while the sweep goes on.

    Raises:
        ConfigurationError: an unknown name.
    """
    if isinstance(wanted, str):
        wanted = [part for part in re.split(r"[,\s]+", wanted) if part]
    if not wanted:
        names = [name for name, entry in catalogue.items() if not entry.get("abstract")]
    else:
        names = list(dict.fromkeys(find_name(part, catalogue) for part in wanted))
    return _baselines_first(names, catalogue)


def _baselines_first(names: list[str], catalogue: Mapping[str, Mapping[str, Any]]) -> list[str]:
    ordered: list[str] = []

    def place(name: str, waiting: frozenset[str]) -> None:
        if name in ordered or name in waiting:
            return
        against = catalogue[name].get("against")
        if against is not None and normalise_name(against) in names:
            place(normalise_name(against), waiting | {name})
        ordered.append(name)

    for name in names:
        place(name, frozenset())
    return ordered


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What differs between two resolved configurations: [(key, from, to)], engine keys first, sorted.

    Environment keys keep their name (`NCCL_ALGO`); a key that one side lacks is None there.
    """
    changes: list[tuple[str, Any, Any]] = []
    for part in ("engine", "environment"):
        old, new = before.get(part) or {}, after.get(part) or {}
        changes += [
            (key, old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)
        ]
    return changes


def fingerprint(*parts: Any) -> str:
    """sha256 of JSON-able parts, keys sorted: equal content, equal fingerprint, whatever its order.

    Raises:
        TypeError: a part is not JSON-able.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
