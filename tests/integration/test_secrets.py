"""Secrets planted wherever somebody may put one, and a search for them through everything that a sweep writes."""

from __future__ import annotations

import base64
import http.server
import io
import json
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
import zstandard
from conftest import BIN, ROOT, said

pytestmark = pytest.mark.slow

CONTROLLER = {
    "HF_TOKEN": "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",
    "AWS_SECRET_ACCESS_KEY": "PlantedCloudKey0123456789",
    "https_proxy": "http://me:PlantedProxyPassword@127.0.0.1:9",
}
INVENTORY = {
    "sglang_model_token": "hf_PlantedHubTokenOfTheInventory",
    "ansible_become_password": "PlantedBecomePassword",
    "my_vault_secret": "PlantedVaultVariable",
}
BEHIND_E = {"sglang_model_token": "hf_PlantedInAFileOfVariables", "ansible_become_password": "PlantedBehindAnAt"}
PLANTED = [
    *("PlantedInTheControllers", "PlantedCloudKey", "PlantedProxyPassword"),
    *(*INVENTORY.values(), *BEHIND_E.values()),
]
# What a user wrote the secret into, and what ansible keeps for one task.
OWN_INPUTS = ("inventory/hosts.yml", "mine.yml")


def everything_below(folder: Path):
    """(name, bytes) of every file, archives and compressed files also unpacked."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink() or "site-packages" in path.parts:
            continue
        content = path.read_bytes()
        yield str(path.relative_to(folder)), content
        if path.suffix == ".zst":
            yield f"{path.name} (unpacked)", zstandard.ZstdDecompressor().decompressobj().decompress(content)
        if path.name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                for member in archive:
                    if stream := archive.extractfile(member):
                        yield f"{path.name}:{member.name}", stream.read()


class ProcessLists(threading.Thread):
    """What any user of the machine sees of our processes while the sweep runs: their command lines."""

    def __init__(self, secrets: Sequence[str] = PLANTED) -> None:
        super().__init__(daemon=True)
        self.secrets = secrets
        self.found: set[str] = set()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if any(secret in line for secret in self.secrets):
                    self.found.add(line[:300])
            time.sleep(0.05)


def test_a_planted_secret_is_in_nothing_that_a_sweep_writes_or_shows(site, tmp_path):
    site.variables |= INVENTORY
    site.write()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = site.environment() | CONTROLLER | {"TMPDIR": str(scratch)}
    watch = ProcessLists()
    watch.start()
    (site.folder / "mine.yml").write_text(yaml.safe_dump(BEHIND_E))
    command = [str(BIN / "shardsweep"), "sweep", "ep8", "-i", str(site.inventory), "--concurrencies", "1"]
    command += ["-e", f"@{site.folder}/mine.yml"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, said(done)
    collect = [str(BIN / "ansible-playbook"), "-i", str(site.inventory), "playbooks/collect.yml", "-vvv"]
    collected = subprocess.run(collect, cwd=site.folder, env=environment, capture_output=True, text=True, timeout=300)
    watch.over.set()
    watch.join()

    records = list((site.folder / "campaigns").rglob("record.json"))
    assert records, "the search is of something"
    found = [
        (name, secret)
        for name, content in everything_below(site.folder)
        if name not in OWN_INPUTS
        for secret in PLANTED
        if secret.encode() in content
    ]
    assert found == []
    shown = done.stdout + done.stderr + collected.stdout + collected.stderr
    assert [secret for secret in PLANTED if secret in shown] == []
    assert watch.found == set()
    # ansible-runner's folder, which holds the command's environment, is gone.
    assert list(scratch.glob("shardsweep-*")) == []


_TELLING_ENGINE = """#!/bin/sh
# An engine that tells every secret it has before it ends.
cat <<'LOG'
[2026-11-29 11:34:10] server_args=ServerArgs(model_path='/m', api_key='PlantedByTheEngine1', tp_size=8)
[2026-11-29 11:34:11] Request headers: {"X-Api-Key": "PlantedByTheEngine2", "token": "PlantedByTheEngine3"}
[2026-11-29 11:34:12] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/hub.py", line 7, in fetch
    raise Refused(f"AWS_SECRET_ACCESS_KEY={key}")
hub.Refused: Authorization: Basic PlantedByTheEngine4 at http://me:PlantedByTheEngine5@hub, TOKEN=PlantedByTheEngine6
LOG
exit 1
"""


def test_what_the_engine_and_strangers_tell_is_in_no_record_of_a_sweep_that_fails(site, tmp_path):
    python = site.folder / "telling-engine"
    python.write_text(_TELLING_ENGINE)
    python.chmod(0o755)
    site.variables |= {"sglang_service_python": str(python), "sglang_service_parser_seconds": 5}
    site.write()
    command = [str(BIN / "shardsweep"), "sweep", "ep8", "-i", str(site.inventory), "--concurrencies", "1"]
    told = subprocess.run(command, cwd=ROOT, env=site.environment(), capture_output=True, text=True, timeout=300)
    del site.variables["sglang_service_python"]
    site.write()
    words = ["--api-key", "PlantedByAStranger1", "HF_TOKEN=PlantedByAStranger2"]
    (tmp_path / "listen.py").write_text(
        f"import socket; s = socket.create_server(('127.0.0.1', {site.port})); print(1, flush=True); input()"
    )
    listening, pipe = [sys.executable, "listen.py", *words], subprocess.PIPE
    stranger = subprocess.Popen(listening, cwd=tmp_path, stdin=pipe, stdout=pipe, text=True)
    try:
        assert stranger.stdout.readline()
        command[2] = "ep4"
        blocked = subprocess.run(command, cwd=ROOT, env=site.environment(), capture_output=True, text=True, timeout=300)
    finally:
        stranger.communicate("\n")
    records = [json.loads(path.read_bytes()) for path in (site.folder / "campaigns").rglob("record.json")]
    failures = {record["configuration"]["name"]: record["failure"] for record in records}
    assert "REMOVED" in failures["ep8"]["sentence"] + str(failures["ep8"]["evidence"]), said(told)
    assert failures["ep4"]["kind"] == "blocked_by_others", said(blocked)
    assert "--api-key REMOVED" in failures["ep4"]["sentence"]
    # The engine's own log says what the engine says.
    own = (*OWN_INPUTS, "telling-engine", "state/log/sglang-ep8.log")
    everything = [(name, content) for name, content in everything_below(site.folder) if name not in own]
    assert [(name, content) for name, content in everything if b"PlantedBy" in content] == []
    assert "PlantedBy" not in told.stdout + told.stderr + blocked.stdout + blocked.stderr


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"sglang_site_configs": {"mine": {"extends": "ep8", "engine": {"api_key": "PlantedKey"}}}}, "a proxy"),
        ({"sglang_site_configs": {"mine": {"extends": "ep8", "environment": {"HF_TOKEN": "PlantedKey"}}}}, "HF_TOKEN"),
        ({"sglang_service_environment": {"OPENAI_API_KEY": "PlantedKey"}}, "OPENAI_API_KEY"),
        ({"sglang_service_arguments": {"api_key": "PlantedKey"}}, "--api-key holds a secret"),
        ({"sglang_service_arguments": {"admin-api-key": "PlantedKey"}}, "--admin-api-key holds a secret"),
    ],
)
def test_a_secret_that_would_have_to_be_shown_is_refused_without_showing_it(site, variables, words):
    site.variables |= variables
    config = "mine" if "sglang_site_configs" in variables else "ep8"
    refused = site.play("deploy.yml", config=config)
    assert refused.returncode != 0
    assert words in said(refused)
    assert "PlantedKey" not in said(refused)
    assert not [name for name, content in everything_below(site.state) if b"PlantedKey" in content]


_RECORDING_PYTHON = """#!{python}
import json, os, sys
program, log = sys.stdin.read(), {log!r}
with open(log, "a") as stream:
    told = os.environ.get("HF_TOKEN") or "none"
    stream.write(json.dumps({{"arguments": sys.argv[1:], "environment": told, "has": {token!r} in program}}) + "\\n")
import time; time.sleep(0.5)
print(json.dumps({{"files": 1, "needed_bytes": 1, "free_bytes": 1 << 50}}))
"""


def test_a_hub_token_reaches_what_fetches_and_no_process_list(site, tmp_path):
    token, log = INVENTORY["sglang_model_token"], tmp_path / "calls.jsonl"
    python = tmp_path / "python"
    python.write_text(_RECORDING_PYTHON.format(python=sys.executable, log=str(log), token=token))
    python.chmod(0o755)
    playbook = tmp_path / "fetch.yml"
    task = {
        "ansible.builtin.include_role": {"name": "shardsweep.serving.sglang_model"},
        "vars": {
            "sglang_model_method": "download",
            "sglang_model_repository": "owner/name",
            "sglang_model_commit": "0" * 40,
            "sglang_model_folder": str(tmp_path / "model"),
            "sglang_model_python": str(python),
            "sglang_model_token": token,
            "sglang_model_fact_path": str(tmp_path / "facts.d"),
        },
    }
    playbook.write_text(yaml.safe_dump([{"hosts": "here", "gather_facts": True, "tasks": [task]}]))
    # What runs apart from the connection leaves its answer here.
    site.variables["ansible_async_dir"] = str(tmp_path / "async")
    watch = ProcessLists()
    watch.start()
    # It fails in the end: nothing was really fetched.
    done = site.play(str(playbook), "-vvv")
    watch.over.set()
    watch.join()
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(call["arguments"][1], call["has"]) for call in calls] == [("plan", True), ("fetch", True)], said(done)
    assert watch.found == set()
    assert token not in said(done)
    own = ("fetch.yml", "python")
    found = [name for name, content in everything_below(site.folder) if token.encode() in content and name not in own]
    assert found == []


class Mirror(http.server.ThreadingHTTPServer):
    """A mirror of PyPI with one package, for whoever knows the password."""

    def __init__(self, wheels: Path, user: str, password: str) -> None:
        self.wheels = wheels
        self.expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self.refused = self.served = 0
        super().__init__(("127.0.0.1", 0), _Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Mirror

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.headers["Authorization"] != self.server.expected:
            self.server.refused += 1
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=mirror")
            self.end_headers()
            return
        file = self.server.wheels / Path(self.path).name
        links = "".join(f'<a href="/files/{path.name}">{path.name}</a>' for path in self.server.wheels.glob("*.whl"))
        self.server.served += file.is_file()
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream" if file.is_file() else "text/html")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(file.read_bytes() if file.is_file() else links.encode())

    def log_message(self, *_: object) -> None:
        """Nothing: a test's output is for what failed."""


@pytest.mark.parametrize(
    "installer",
    ["pip", pytest.param("uv", marks=pytest.mark.skipif(shutil.which("uv") is None, reason="no uv on this machine"))],
)
def test_a_mirrors_password_reaches_the_installer_and_no_process_list(site, tmp_path, installer):
    made = tmp_path / "made"
    subprocess.run([sys.executable, str(ROOT / "molecule/sglang/make_wheels.py"), str(made), str(ROOT)], check=True)
    password, proxy = "PlantedMirrorPassword", "PlantedNoProxy"
    mirror = Mirror(made / "wheels", "me", password)
    site.variables |= {
        "sglang_home": str(tmp_path / "sglang"),
        "sglang_release": "0.5.11",
        "sglang_requirements": str(made / "requirements-0.5.11.txt"),
        "sglang_index_url": f"http://me:{password}@127.0.0.1:{mirror.server_port}/simple",
        "sglang_install_environment": {"no_proxy": f"127.0.0.1,{proxy}", "UV_CACHE_DIR": str(tmp_path / "cache")},
        "sglang_installer": installer,
        "sglang_uv": shutil.which("uv") or "",
        "sglang_python": sys.executable,
        "sglang_packages": False,
        "sglang_free_bytes": 100_000_000,
        "sglang_fact_path": str(tmp_path / "facts.d"),
        "sglang_user": "",
        "ansible_async_dir": str(tmp_path / "async"),
    }
    playbook = tmp_path / "install.yml"
    role = {"hosts": "here", "gather_facts": False, "roles": ["shardsweep.serving.sglang"]}
    playbook.write_text(yaml.safe_dump([role]))
    watch = ProcessLists([password, proxy])
    watch.start()
    done = site.play(str(playbook), "-vvv", "--diff")
    watch.over.set()
    watch.join()
    mirror.shutdown()
    assert done.returncode == 0, said(done)
    assert mirror.served, "it came from the mirror"
    assert watch.found == set()
    assert password not in said(done)
    found = [name for name, content in everything_below(tmp_path) if password.encode() in content]
    assert found == ["inventory/hosts.yml"]


@pytest.mark.parametrize("variable", ["sglang_tools_pip_arguments", "sglang_install_arguments"])
def test_a_password_in_an_installers_arguments_is_refused(site, tmp_path, variable):
    site.variables |= {
        variable: ["--index-url=https://me:PlantedKey@mirror/simple"],
        "sglang_tools_home": str(tmp_path / "none"),
        "sglang_home": str(tmp_path / "sglang"),
    }
    role = "sglang_tools" if "tools" in variable else "sglang"
    playbook = tmp_path / "install.yml"
    playbook.write_text(
        yaml.safe_dump([{"hosts": "here", "gather_facts": False, "roles": [f"shardsweep.serving.{role}"]}])
    )
    refused = site.play(str(playbook))
    assert refused.returncode != 0
    assert f"{variable} has a URL with a password" in said(refused)
    assert "PlantedKey" not in said(refused)
