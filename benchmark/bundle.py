"""This package as a wheel, built with nothing but the standard library: how it travels from a controller to a host.

A controller may be an installed collection beside an ansible-core that has no build tool and no network, so this
does not ask for one. The wheel is the same, byte for byte, for the same source; its version says which source.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import zipfile
from pathlib import Path

from . import __version__

_PACKAGE = Path(__file__).parent
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SCRIPTS = "[console_scripts]\nshardsweep = benchmark.__main__:main\nshardsweep-host = benchmark.host.__main__:main\n"


def sources() -> list[Path]:
    """The package's files, sorted; what Python and editors leave behind is not among them."""
    return sorted(
        path
        for path in _PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    )


def version() -> str:
    """`0.1.0+` and a fingerprint of the source."""
    content = hashlib.sha256()
    for path in sources():
        content.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{__version__}+{content.hexdigest()[:12]}"


def build(directory: Path) -> Path:
    """Write the wheel into a folder, unless it is there, and return its path."""
    release = version()
    wheel = directory / f"shardsweep-{release}-py3-none-any.whl"
    if wheel.exists():
        return wheel
    directory.mkdir(parents=True, exist_ok=True)
    information = f"shardsweep-{release}.dist-info"
    files = {path.relative_to(_PACKAGE.parent).as_posix(): path.read_bytes() for path in sources()}
    files[f"{information}/METADATA"] = (
        f"Metadata-Version: 2.4\nName: shardsweep\nVersion: {release}\nRequires-Python: >=3.11\n"
    ).encode()
    files[f"{information}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: shardsweep\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files[f"{information}/entry_points.txt"] = _SCRIPTS.encode()
    listing = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items())
    files[f"{information}/RECORD"] = f"{listing}{information}/RECORD,,\n".encode()
    part = wheel.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    part.replace(wheel)
    return wheel


def _digest(content: bytes) -> str:
    """As RECORD wants it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    wheel = build(Path(sys.argv[1]))
    sys.stdout.write(json.dumps({"wheel": str(wheel), "version": version()}) + "\n")
