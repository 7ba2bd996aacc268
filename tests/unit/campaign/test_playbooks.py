"""A playbook that is run and watched, and stopped."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import yaml
from ansible.parsing.vault import VaultLib, VaultSecret

from benchmark.campaign.extra import ExtraError, readable
from benchmark.campaign.playbooks import command_line, forks, run_plain, run_watched


def test_a_playbook_that_is_stopped_leaves_no_process_behind(tmp_path):
    mark = f"sleeps-in-{tmp_path.name}"
    book = tmp_path / "book.yml"
    # As a step of a sweep: asked again and again until it says that it is over.
    task = {
        "ansible.builtin.command": {"argv": [sys.executable, "-c", "import time; time.sleep(1)", mark]},
        "register": "said",
        "until": "said.rc == 7",
        "retries": 90,
        "delay": 0,
    }
    book.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    asked = []

    def take(event):
        if event["event"] == "runner_retry":
            asked.append(event)

    options = ["-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}"]
    status, _ = run_watched(str(book), options, take, lambda: bool(asked))
    assert status == "canceled" and asked
    time.sleep(4)
    assert [line for line in command_lines() if mark in line or str(book) in line] == []


def test_forks_are_those_that_ansible_would_use(tmp_path, monkeypatch):
    monkeypatch.delenv("ANSIBLE_FORKS", raising=False)
    monkeypatch.setenv("ANSIBLE_CONFIG", str(tmp_path / "ansible.cfg"))
    assert forks() == 5
    (tmp_path / "ansible.cfg").write_text("[defaults]\nforks = 20\n")
    assert forks() == 20
    monkeypatch.setenv("ANSIBLE_FORKS", "50")
    assert forks() == 50


def vaulted(text: str) -> str:
    return VaultLib([("default", VaultSecret(b"open"))]).encrypt(text, vault_id="default").decode()


def test_what_stands_behind_e_reaches_the_playbook_by_files_and_no_process_list(tmp_path, monkeypatch):
    (tmp_path / "password").write_text("open")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "password"))
    (tmp_path / "vault.yml").write_text(vaulted("token: PlantedInAVault"))
    one = "".join(f"  {line}\n" for line in vaulted("PlantedValue").splitlines())
    (tmp_path / "mine.yml").write_text(f"rate: 2\nword: PlantedInAFile\nlate: file\nvalue: !vault |\n{one}")
    asked = {name: f"{{{{ {name} }}}}" for name in ("token", "rate", "word", "late", "value", "key", "config")}
    copy = {"content": "{{ asked | to_json }}", "dest": str(tmp_path / "told"), "mode": "0600"}
    task = {"ansible.builtin.copy": copy, "vars": {"asked": asked}}
    (tmp_path / "book.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    monkeypatch.chdir(tmp_path)
    extra = ["late=before", "@vault.yml", f"@{tmp_path}/mine.yml", "key=PlantedPair", "rate=3"]
    further = ("-c", "local", "-e", f"ansible_python_interpreter={sys.executable}")
    with command_line(["localhost,"], None, extra, {"config": "ep8"}, further) as arguments:
        assert "Planted" not in " ".join(arguments)
        written = [Path(word[1:]) for word in arguments if word.startswith("@") and str(tmp_path) not in word]
        assert [path.stat().st_mode & 0o777 for path in written] == [0o600] * 4
        with (tmp_path / "out").open("w") as out:
            assert run_plain(str(tmp_path / "book.yml"), arguments, out=out) == 0, (tmp_path / "out").read_text()
    assert [path for path in written if path.exists()] == []
    # The last one wins, as with ansible-playbook.
    assert json.loads((tmp_path / "told").read_text()) == {
        "token": "PlantedInAVault",
        "rate": "3",
        "word": "PlantedInAFile",
        "late": "file",
        "value": "PlantedValue",
        "key": "PlantedPair",
        "config": "ep8",
    }


def test_of_what_stands_behind_e_a_vault_is_left_to_ansible(tmp_path):
    (tmp_path / "vault.yml").write_text(vaulted("token: PlantedInAVault"))
    (tmp_path / "mine.yml").write_text("configs: ep8\ntoken: !vault abc\nladder: [1, 8]\n")
    told = readable([f"@{tmp_path}/vault.yml", f"@{tmp_path}/mine.yml", "rate=2"])
    assert told == {"configs": "ep8", "ladder": [1, 8], "rate": "2"}


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read"), ("- a\n", "no mapping"), ("a: [", "cannot be read")]
)
def test_a_file_of_variables_that_is_none_is_said_to_be(tmp_path, content, words):
    if content is not None:
        (tmp_path / "mine.yml").write_text(content)
    with pytest.raises(ExtraError, match=words):
        readable([f"@{tmp_path}/mine.yml"])


def command_lines() -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines
