"""Hosts whose Python is too old, has no headers, or cannot make an environment: told before anything is fetched."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import Site, said


def python(site: Site, release: str, *, whole: bool = True) -> str:
    """A Python that says it is of this release; not whole: without ensurepip, as Debian's without python3-venv."""
    program = site.folder / "python"
    program.write_text(
        "#!/bin/sh\n"
        f"case $2 in *version_info*) echo {release} ;; *ensurepip*) [ {int(whole)} = 1 ] || {{ "
        """echo "ModuleNotFoundError: No module named 'ensurepip'" >&2; exit 1; } ;; esac\n"""
    )
    program.chmod(0o755)
    return str(program)


def play(site: Site, role: str, *arguments: str, **variables):
    playbook = site.folder / "role.yml"
    playbook.write_text(
        yaml.safe_dump([{"hosts": "here", "gather_facts": False, "roles": [f"shardsweep.serving.{role}"]}])
    )
    return site.play(str(playbook), *arguments, **variables)


def engine(site: Site, **more) -> None:
    site.variables |= {
        "sglang_home": str(site.folder / "sglang"),
        "sglang_packages": False,
        "sglang_free_bytes": 1,
        "sglang_fact_path": str(site.folder / "facts.d"),
        "sglang_user": "",
        **more,
    }


@pytest.mark.parametrize("arguments", [(), ("--check",)])
def test_tools_on_a_host_whose_python_is_too_old(site, arguments):
    site.variables |= {"sglang_tools_home": str(site.folder / "tools"), "sglang_tools_python": python(site, "3.10")}
    refused = play(site, "sglang_tools", *arguments)
    assert refused.returncode != 0
    assert "is Python 3.10; the tools need Python 3.11 or newer" in said(refused)
    assert "sglang_tools_python: python3.11" in said(refused)
    assert not (site.folder / "tools").exists()


def test_tools_on_a_host_without_that_python(site):
    site.variables |= {"sglang_tools_home": str(site.folder / "tools"), "sglang_tools_python": "/nowhere/python3.11"}
    refused = play(site, "sglang_tools")
    assert "(/nowhere/python3.11) on here is not there; the tools need Python 3.11 or newer" in said(refused)


def test_what_debians_python_lacks_would_be_installed(site):
    site.variables |= {
        "sglang_tools_home": str(site.folder / "tools"),
        "sglang_tools_python": python(site, "3.13", whole=False),
    }
    done = play(site, "sglang_tools", "--check")
    # As root on Debian; whoever cannot install packages is told which.
    assert "python3.13-venv would be installed" in said(done) or "Install python3.13-venv" in said(done)


@pytest.mark.parametrize(
    ("release", "given", "refused"),
    [("0.5.23", "3.10", True), ("0.5.11", "3.10", False), ("0.5.23", "3.11", False), ("0.5.23", "path", True)],
)
def test_a_lock_of_a_newer_python_is_told_beforehand(site, release, given, refused):
    engine(site, sglang_release=release, sglang_python=python(site, "3.10") if given == "path" else given)
    done = play(site, "sglang", "--check")
    assert ("is Python 3.10; the lock of SGLang 0.5.23 is for 3.11 or newer" in said(done)) == refused
    assert (done.returncode != 0) == refused, said(done)


def headless(site: Site) -> str:
    """This Python as a distribution has it, without its headers."""
    program = site.folder / "headless"
    hidden = "import sys, sysconfig; sysconfig.get_path = lambda *_: '/usr/include/python3.x'; exec(sys.argv[1])"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{hidden}" "$2"\n')
    program.chmod(0o755)
    return str(program)


def test_a_named_python_without_headers_is_told_beforehand(site):
    engine(site, sglang_python=headless(site))
    refused = play(site, "sglang", "--check")
    assert refused.returncode != 0
    assert "has no headers (/usr/include/python3.x/Python.h is not there)" in said(refused)
    assert f"Install python{sys.version_info.major}.{sys.version_info.minor}-dev" in said(refused)


@pytest.mark.parametrize(
    ("found", "forbidden", "asked", "told"),
    [
        ("without headers", {}, "--managed-python --python 3.12", "nothing is downloaded here"),
        ("without headers", {"UV_NO_MANAGED_PYTHON": "1"}, None, "uv may not take a Python of its own"),
        ("with headers", {}, "--python 3.12", "nothing is downloaded here"),
    ],
)
def test_uv_takes_a_python_of_its_own_where_the_hosts_has_no_headers(site, found, forbidden, asked, told):
    answers = {"without headers": f"echo {headless(site)}", "with headers": f"echo {sys.executable}"}
    uv, log = site.folder / "uv", site.folder / "asked"
    uv.write_text(
        f'#!/bin/sh\ncase "$1 $2" in "python find") {answers[found]} ;; *) echo "$@" >>{log}; '
        "echo nothing is downloaded here >&2; exit 1 ;; esac\n"
    )
    uv.chmod(0o755)
    engine(site, sglang_python="3.12", sglang_uv=str(uv), sglang_install_environment=forbidden)
    done = play(site, "sglang")
    assert told in said(done)
    advised = f"install python{sys.version_info.major}.{sys.version_info.minor}-dev" in said(done)
    assert advised == (found == "without headers")
    venvs = [line.rsplit(" ", 1) for line in log.read_text().splitlines()] if log.exists() else []
    assert [words for words, _ in venvs] == ([f"venv --quiet --no-project {asked}"] if asked else [])
    assert not list((site.folder / "sglang").glob("venv-*"))


def lists_nothing(folder: Path, package: str) -> Path:
    """A configuration of apt with one source that has this package, and no lists yet, as in a fresh image.

    What it would unpack is written into `folder`/unpacked, and not done.
    """
    build, source = folder / "build/DEBIAN", folder / "source"
    parts = ("etc/apt", "var/lib/dpkg", "var/lib/apt/lists", "var/cache/apt")
    for path in (build, source, *(folder / part for part in parts)):
        path.mkdir(parents=True)
    (folder / "var/lib/dpkg/status").touch()
    fields = f"Package: {package}\nVersion: 1\nArchitecture: all\nMaintainer: no <no@localhost>\nDescription: nothing\n"
    (build / "control").write_text(fields)
    deb = source / f"{package}_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", build.parent, deb], check=True, capture_output=True)
    digest = hashlib.sha256(deb.read_bytes()).hexdigest()
    entry = f"{fields}Filename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {digest}\n"
    (source / "Packages").write_text(entry)
    (folder / "etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{source} ./\n")
    dpkg = folder / "dpkg"
    dpkg.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--unpack*|*--configure*) echo "$@" >>{folder}/unpacked ;; *) exec /usr/bin/dpkg "$@" ;; esac\n'
    )
    dpkg.chmod(0o755)
    configuration = folder / "apt.conf"
    configuration.write_text(
        f'Dir "{folder}/";\nDir::State::status "{folder}/var/lib/dpkg/status";\nDir::Bin::dpkg "{dpkg}";\n'
        'APT::Sandbox::User "root";\n'
    )
    return configuration


def no_apt() -> bool:
    asked = subprocess.run(["/usr/bin/python3", "-c", "import apt"], capture_output=True, check=False)
    return os.geteuid() != 0 or asked.returncode != 0


@pytest.mark.skipif(no_apt(), reason="this needs root, and the apt of a Debian")
@pytest.mark.parametrize(("role", "package"), [("sglang_tools", "python3.99-venv"), ("sglang", "stands-for-libnuma1")])
def test_what_a_fresh_image_lacks_is_installed_although_it_has_no_lists(site, role, package, monkeypatch):
    monkeypatch.setenv("APT_CONFIG", str(lists_nothing(site.folder / "apt", package)))
    tools = {"sglang_tools_home": str(site.folder / "tools"), "sglang_tools_python": python(site, "3.99", whole=False)}
    engine(site, **tools, sglang_packages=True, sglang_uv="/bin/false")
    done = play(site, role, __sglang_packages=[package])
    unpacked = site.folder / "apt/unpacked"
    assert unpacked.exists(), said(done)
    assert f"{package}_1_all.deb" in unpacked.read_text()
