"""Wheels of a few lines, so that a scenario needs no network, and the locks that name them."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> str:
    """Write NAME-VERSION-py3-none-any.whl into the folder; returns its line of a lock.

    Files below `NAME-VERSION.data/scripts/` become programs of the environment.
    """
    information = f"{name}-{version}.dist-info"
    content = files | {
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    content[f"{information}/RECORD"] = "".join(f"{file},,\n" for file in [*content, f"{information}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in content.items():
            entry = zipfile.ZipInfo(file)
            entry.external_attr = (0o100755 if ".data/scripts/" in file else 0o100644) << 16
            archive.writestr(entry, text)
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"
