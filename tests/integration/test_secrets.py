"""Secrets planted wherever somebody may put one, and a search for them through everything that a sweep writes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import threading
import time
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
PLANTED = ["PlantedInTheControllers", "PlantedCloudKey", "PlantedProxyPassword", *(v for v in INVENTORY.values())]
# What a user wrote the secret into, and what ansible keeps for one task.
OWN_INPUTS = ("inventory/hosts.yml",)


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

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.found: set[str] = set()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if any(secret in line for secret in PLANTED):
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
    command = [str(BIN / "shardsweep"), "sweep", "ep8", "-i", str(site.inventory), "--concurrencies", "1"]
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


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"sglang_site_configs": {"mine": {"extends": "ep8", "engine": {"api_key": "PlantedKey"}}}}, "a proxy"),
        ({"sglang_site_configs": {"mine": {"extends": "ep8", "environment": {"HF_TOKEN": "PlantedKey"}}}}, "HF_TOKEN"),
        ({"sglang_service_environment": {"OPENAI_API_KEY": "PlantedKey"}}, "OPENAI_API_KEY"),
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
print(json.dumps({{"needed_bytes": 1 if "plan" in sys.argv else 0, "free_bytes": 1 << 50}}))
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
