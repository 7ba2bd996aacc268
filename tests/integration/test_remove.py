"""remove.yml takes away what the playbooks made, and leaves what somebody else did."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from conftest import said

pytestmark = pytest.mark.slow

OURS = "venv-0.5.11-abcdef01"


def environment(folder: Path, home: str = "/usr/bin", *, locked: bool = False) -> None:
    """A virtual environment, as far as it matters here; with the list that the role sglang writes into its own."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text(f"home = {home}\nversion_info = 3.12.11\n")
    if locked:
        (folder / "requirements.txt").write_text("sglang==0.5.11\n")


def pythons(folder: Path) -> None:
    """As uv 0.8 lays a Python: its lock, a folder for what is half fetched, the release."""
    (folder / "cpython-3.12.11-linux-x86_64-gnu/bin").mkdir(parents=True)
    (folder / ".temp").mkdir()
    for name in (".lock", ".gitignore"):
        (folder / name).touch()


@pytest.fixture
def home(site) -> Path:
    """The engine's folder as the roles leave it."""
    made = site.folder / "opt"
    environment(made / OURS, str(made / "python/cpython-3.12.11-linux-x86_64-gnu/bin"), locked=True)
    environment(made / "uv", locked=True)
    pythons(made / "python")
    (made / "venv").symlink_to(OURS)
    (made / "cuda").symlink_to("/usr/local/cuda-13.0")
    # Tools of this test's own, which are taken away too.
    site.tools = site.folder / "tools"
    facts = {f"{name}_fact_path": str(site.folder / name) for name in ("sglang", "sglang_model", "gpu_host")}
    site.variables |= facts | {"sglang_home": str(made)}
    return made


def removed(site, *arguments: str, **variables):
    done = site.play("playbooks/remove.yml", *arguments, **variables)
    assert done.returncode == 0, said(done)
    return done


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_engines_folder_goes_whole_where_all_of_it_is_ours(site, home):
    removed(site)
    assert not home.exists()
    assert "changed=0" in removed(site).stdout


def test_it_stays_whole_on_request(site, home):
    removed(site, engine=False)
    assert names(home) == {OURS, "uv", "python", "venv", "cuda"}


def test_what_somebody_else_made_stays(site, home):
    environment(home / "venv-mine", locked=True)
    environment(home / "venv-0.5.12-abcdef02")
    (home / "notes.txt").touch()
    removed(site)
    assert names(home) == {"venv-mine", "venv-0.5.12-abcdef02", "notes.txt"}


def test_folders_that_only_have_our_names_stay(site, home):
    for name in ("venv", "cuda"):
        (home / name).unlink()
        (home / name).mkdir()
    (home / "python/.lock").unlink()
    removed(site)
    assert names(home) == {"venv", "cuda", "python"}


def test_a_link_to_cuda_goes_with_the_folder_that_was_made_for_it(site, home):
    for path in (home / OURS, home / "uv", home / "python"):
        shutil.rmtree(path)
    removed(site)  # `venv` leads nowhere now, and may be somebody else's.
    assert names(home) == {"venv", "cuda"}
    (home / "venv").unlink()
    removed(site)
    assert not home.exists()


def test_the_python_of_a_foreign_environment_stays_with_it(site, home):
    environment(home / "venv-mine", str(home / "python/cpython-3.12.11-linux-x86_64-gnu/bin"))
    removed(site)
    assert names(home) == {"venv-mine", "python"}


def test_nothing_goes_in_check_mode(site, home):
    told = removed(site, "--check")
    assert str(home) in told.stdout
    assert names(home) == {OURS, "uv", "python", "venv", "cuda"}


def test_facts_go_from_where_each_role_writes_its_own(site, home):
    written = {"sglang": "engine", "sglang_model": "model", "gpu_host": "preflight", "facts.d": "ep4"}
    for folder, name in written.items():
        (site.folder / folder).mkdir()
        (site.folder / folder / f"sglang_{name}.fact").write_text("{}")
        (site.folder / folder / "of_others.fact").write_text("{}")
    removed(site, engine=False)
    # What is told of an engine that stays stays too.
    assert names(site.folder / "sglang") == {"sglang_engine.fact", "of_others.fact"}
    removed(site)
    assert [names(site.folder / folder) for folder in written] == [{"of_others.fact"}] * 4


@pytest.mark.parametrize("others", [False, True])
def test_what_we_set_for_the_persistence_daemon_goes(site, home, others):
    # In check mode: the rest of systemd's is this machine's.
    site.variables["sglang_service_manager"] = "systemd"
    folder = site.folder / "systemd/nvidia-persistenced.service.d"
    folder.mkdir(parents=True)
    (folder / "10-shardsweep.conf").touch()
    if others:
        (folder / "20-site.conf").touch()
    told = removed(site, "--check", __sglang_service_unit_directory=str(site.folder / "systemd"))
    gone = folder / "10-shardsweep.conf" if others else folder
    assert f"changed: [here] => (item={gone})" in told.stdout
