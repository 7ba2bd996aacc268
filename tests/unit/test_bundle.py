from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from benchmark import bundle


def test_the_wheel_is_the_same_for_the_same_source_and_holds_all_of_it(tmp_path):
    first, second = bundle.build(tmp_path / "a"), bundle.build(tmp_path / "b")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    names = zipfile.ZipFile(first).namelist()
    package = Path(bundle.__file__).parent
    for path in package.rglob("*.json"):
        assert f"benchmark/{path.relative_to(package).as_posix()}" in names
    assert not [name for name in names if "__pycache__" in name]


def test_pip_installs_it_without_a_network(tmp_path):
    wheel = bundle.build(tmp_path)
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "site"),
    ]
    subprocess.run([*install, str(wheel)], check=True)
    code = "import importlib.metadata as m; print(m.version('shardsweep'))"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == bundle.version()
    assert (tmp_path / "site/bin/shardsweep-host").exists()
