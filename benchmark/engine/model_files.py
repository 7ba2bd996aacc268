"""Is a model's folder whole? Its files against its own index, sizes against the safetensors headers, and its revision.

Weights are not read: a safetensors file tells its size in its first kilobytes, so 64 files of 595 GB take a second.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import json_file

_INDEX = "model.safetensors.index.json"
_PARTIAL = ("*.incomplete", "*.part", "*.partial", "*.aria2", "*.crdownload", "*.download", "*.tmp")
"""What downloaders call a file that is not whole: huggingface_hub, wget and rsync wrappers, aria2, browsers."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json", "tekken.json")
_CODE_CONFIGS = ("tokenizer_config.json", "preprocessor_config.json", "processor_config.json",
                 "video_preprocessor_config.json")  # fmt: skip
"""Beside config.json: transformers looks for a model's own classes in each."""
_LARGEST_HEADER = 100_000_000
"""Bytes; the safetensors library refuses a larger header too."""


class FileProblem(ValueError):  # noqa: N818  (a list of these is the answer)
    """One thing that is wrong with a model's files; the text says what, where and what to do."""


@dataclass(frozen=True)
class ModelFiles:
    """What a folder holds."""

    path: str
    problems: tuple[str, ...]
    """Sentences; none when the model is whole."""
    revision: str
    """sha256 of config.json, the index, the sizes of all weight files, any Python file, and what the tokenizer's and
    processors' configs name as code; empty without a config."""
    commit: str
    """Commit that huggingface_hub fetched, as it noted it; empty when it did not."""
    weight_files: int
    weight_bytes: int
    tensors: int
    python_files: tuple[str, ...]
    """Code of the model's own: it runs only with trust_remote_code."""
    foreign_code: tuple[str, ...] = ()
    """Classes that a config names in code that is not among those files, so under no pin."""

    @property
    def whole(self) -> bool:
        return not self.problems


def look_at(folder: Path) -> ModelFiles:
    """Look at a model's folder as the user who calls this: what that user cannot read is a problem. Changes nothing."""
    folder = folder.absolute()
    closed = _closed(folder)
    if closed:
        return ModelFiles(str(folder), (closed,), "", "", 0, 0, 0, ())
    problems: list[str] = []
    config = _json(folder / "config.json", problems, needed=True)
    index = _json(folder / _INDEX, problems, needed=False)
    expected = _expected(folder, index, problems)
    sizes: dict[str, int] = {}
    tensors = 0
    for name, wanted in expected.items():
        try:
            size, held = _weights(folder / name)
        except FileProblem as problem:
            problems.append(str(problem))
            continue
        sizes[name] = size
        tensors += len(held) if held is not None else 0
        absent = sorted(wanted - held) if held is not None else []
        if absent:
            more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            problems.append(f"{name} does not hold {absent[0]}{more}, which the index puts there. Fetch it again.")
    problems += _partial(folder)
    problems += _tokenizer(folder)
    python_files = tuple(sorted(path.relative_to(folder).as_posix() for path in _files(folder, "*.py")))
    code = {name: _code(_json(folder / name, problems, needed=False)) for name in _CODE_CONFIGS}
    foreign = _foreign(folder, [*_code(config), *(named for found in code.values() for named in found)], python_files)
    problems += foreign.values()
    return ModelFiles(
        path=str(folder),
        problems=tuple(problems),
        revision=_revision(folder, sizes, python_files, code),
        commit=_commit(folder),
        weight_files=len(sizes),
        weight_bytes=sum(sizes.values()),
        tensors=tensors,
        python_files=python_files,
        foreign_code=tuple(foreign),
    )


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _closed(folder: Path) -> str | None:
    """Why this user cannot list the folder: the first folder on the way that is absent or closed."""
    for step in [*reversed(folder.parents), folder]:
        if not step.is_dir():
            return f"{step} is not there or is no folder. Name the model's folder, or have it downloaded."
        last = step == folder
        if not os.access(step, os.X_OK | (os.R_OK if last else 0)):
            return (
                f"{step} is closed to {_user()}. A model must lie where the service's user can read it (not in another "
                f"user's home): move it, or open the folder by chmod o+{'r' if last else ''}x."
            )
    return None


def _json(path: Path, problems: list[str], *, needed: bool) -> dict[str, Any] | None:
    try:
        content = json_file.read(path)
    except FileNotFoundError:
        if needed or path.is_symlink():
            problems.append(f"{path.name} is not in the folder. Fetch the model again; what is there is kept.")
        return None
    except PermissionError:
        problems.append(f"{path.name} cannot be read by {_user()}: chmod o+r {path}.")
        return None
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read as JSON ({error}). Fetch it again.")
        return None
    if not isinstance(content, dict):
        problems.append(f"{path.name} is not a JSON object. Fetch it again.")
        return None
    return content


def _expected(folder: Path, index: Mapping[str, Any] | None, problems: list[str]) -> dict[str, set[str]]:
    """{weight file: tensors that the index puts there}, sorted by name."""
    there = sorted(path.name for path in folder.glob("*.safetensors"))
    if index is not None:
        found: dict[str, set[str]] = {}
        mapping = index.get("weight_map")
        for tensor, name in mapping.items() if isinstance(mapping, dict) else ():
            if not isinstance(name, str) or "/" in name or name in ("", ".", ".."):
                problems.append(f"{_INDEX} puts {tensor} in {name!r}, which is no file of this folder. Fetch it again.")
            else:
                found.setdefault(name, set()).add(tensor)
        if not found and not problems:
            problems.append(f"{_INDEX} names no file. Fetch it again.")
        return dict(sorted(found.items()))
    if len(there) > 1 and not (folder / _INDEX).exists():
        problems.append(f"There are {len(there)} .safetensors files and no {_INDEX} to say which belong. Fetch it.")
    if there:
        return {name: set() for name in there}
    other = sorted(path.name for pattern in ("*.bin", "*.gguf", "*.pt") for path in folder.glob(pattern))
    if not other:
        problems.append("No weights are in the folder (*.safetensors). Fetch the model.")
    return {name: set() for name in other}


def _weights(path: Path) -> tuple[int, set[str] | None]:
    """(size in bytes, names of the tensors) of a weight file; no names where the format does not tell.

    Raises:
        FileProblem: absent, unreadable, or not the size that its own header asks for.
    """
    size = 0
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            start = stream.read(8)
            if path.suffix != ".safetensors":
                if size == 0:
                    raise FileProblem(f"{path.name} is empty. Fetch it again.")
                return size, None
            if start == b"version ":
                raise FileProblem(f"{path.name} is a Git LFS pointer, not the weights: run git lfs pull.")
            if len(start) < 8 or not 2 <= (length := struct.unpack("<Q", start)[0]) <= _LARGEST_HEADER:
                raise FileProblem(f"{path.name} is no safetensors file ({size} bytes). Fetch it again.")
            # Headers are a JSON object: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...}
            header = json.loads(stream.read(length))
            entries = {name: entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"}
            wanted = 8 + length + max(entries.values(), default=0)
    except FileNotFoundError:
        where = "is a link to nothing" if path.is_symlink() else "is not in the folder"
        raise FileProblem(f"{path.name} {where}. Fetch the model again; what is there is kept.") from None
    except PermissionError:
        raise FileProblem(f"{path.name} cannot be read by {_user()}: chmod o+r {path}.") from None
    except FileProblem:
        raise
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        # The header itself may be cut.
        raise FileProblem(f"{path.name} has no header that can be read ({size} bytes). Fetch it again.") from None
    if size != wanted:
        raise FileProblem(f"{path.name} has {size} bytes and should have {wanted}. Fetch it again.")
    return size, set(entries)


def _files(folder: Path, pattern: str) -> Iterator[Path]:
    """Files of the model itself: not what downloaders and Git keep beside it."""
    for path in folder.rglob(pattern):
        inner = path.relative_to(folder).parts[:-1]
        if not any(part.startswith(".") or part == "__pycache__" for part in inner) and not path.is_dir():
            yield path


def _partial(folder: Path) -> list[str]:
    found = {path for pattern in _PARTIAL for path in folder.glob(pattern)}
    # huggingface_hub keeps unfinished files here until they are whole.
    found.update((folder / ".cache/huggingface/download").rglob("*.incomplete"))
    return [
        f"{path.relative_to(folder)} is part of a file: a download was cut off or still runs. Finish it, or delete it."
        for path in sorted(found)
    ]


def _tokenizer(folder: Path) -> list[str]:
    there = [name for name in _TOKENIZERS if (folder / name).exists()]
    if not there:
        return [f"No tokenizer is in the folder ({', '.join(_TOKENIZERS)}). Fetch the model's small files too."]
    return [
        f"{name} cannot be read by {_user()}: chmod o+r." for name in there if not os.access(folder / name, os.R_OK)
    ]


def _code(config: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What any `auto_map` of a config names, sorted: [(AutoTokenizer, file.Class)], or a class of another repository as
    `owner/name--file.Class`. Configs of processors have further ones inside them; an old tokenizer's is a list."""
    found: set[tuple[str, str]] = set()
    left: list[Any] = [config]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            named = part.get("auto_map")
            for kind, classes in named.items() if isinstance(named, dict) else [("", named)]:
                each = classes if isinstance(classes, list) else [classes]
                found |= {(kind, name) for name in each if isinstance(name, str) and "." in name}
            left += part.values()
        elif isinstance(part, list):
            left += part
    return sorted(found)


def _foreign(folder: Path, code: Iterable[tuple[str, str]], python_files: tuple[str, ...]) -> dict[str, str]:
    """{class: what is wrong with where its code lies}, of those whose file is not one of the model's."""
    found: dict[str, str] = {}
    for name in sorted({name for _, name in code}):
        module = name.rpartition(".")[0]
        file = module.replace(".", "/") + ".py"
        if "--" in module:
            repository = module.partition("--")[0]
            found[name] = f"The code of {name} lies in another repository, {repository}: it will not load offline."
        elif file not in python_files or not (folder / file).exists():
            found[name] = (
                f"{file} is not in the folder (what lies behind a linked folder is not), and the model's config asks "
                "for it. Fetch it."
            )
    return found


def _revision(
    folder: Path,
    sizes: Mapping[str, int],
    python_files: tuple[str, ...],
    code: Mapping[str, list[tuple[str, str]]],
) -> str:
    if not os.access(folder / "config.json", os.R_OK):
        return ""
    content = hashlib.sha256()
    for name in ("config.json", _INDEX, *python_files):
        path = folder / name
        if os.access(path, os.R_OK):
            content.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    # Not these files whole: which of the model's code runs is a matter of trust, a chat template is not.
    for name, named in code.items():
        if named:
            content.update(f"{name}\0{json.dumps(named)}\0".encode())
    for name, size in sorted(sizes.items()):
        content.update(f"{name}\0{size}\0".encode())
    return content.hexdigest()


def _commit(folder: Path) -> str:
    """huggingface_hub notes the commit in its cache's folder name, or in a file beside a local folder."""
    if folder.parent.name == "snapshots" and len(folder.name) == 40:
        return folder.name
    note = folder / ".cache/huggingface/download/config.json.metadata"
    try:
        commit = note.read_text().split("\n", 1)[0].strip()
    except OSError:
        return ""
    return commit if len(commit) == 40 else ""
