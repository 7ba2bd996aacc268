#!/usr/bin/python
"""Writes several small text files in one call."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: files
short_description: Write several small text files
description:
  - Writes text files, each whole or not at all, and only where they differ from what is there. Folders that are missing
    are made.
  - One call where M(ansible.builtin.template) needs three for each file; the text comes from the lookup
    P(ansible.builtin.template#lookup).
author: The Shardsweep founders
version_added: 0.1.0
options:
  files:
    description: The files, in the order in which they are written.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Where the file lies.
        type: path
        required: true
      content:
        description: Its text.
        type: str
        required: true
      validate:
        description:
          - A command that has to succeed before any of the files is written; the path of a copy with the file's own
            name is put behind it.
        type: list
        elements: str
        default: []
  mode:
    description: Permissions of each file.
    type: raw
    default: "0644"
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

EXAMPLES = """
- name: Write a unit
  shardsweep.serving.files:
    files:
      - path: /etc/systemd/system/sglang-ep4.service
        content: "{{ lookup('ansible.builtin.template', 'sglang.systemd.j2') }}"
        validate: [systemd-analyze, verify]
"""

RETURN = """
written:
  description: Paths of the files that were not as they are to be.
  type: list
  elements: str
  returned: always
"""


def main() -> None:
    file = {
        "path": {"type": "path", "required": True},
        "content": {"type": "str", "required": True},
        "validate": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "required": True, "options": file},
            "mode": {"type": "raw", "default": "0644"},
        },
        supports_check_mode=True,
    )
    wanted, mode = module.params["files"], module.params["mode"]
    before = {each["path"]: _text(Path(each["path"])) for each in wanted}
    changed = [each for each in wanted if before[each["path"]] != each["content"]]
    if not module.check_mode:
        for each in changed:
            _validate(module, each)
        for each in changed:
            _write(module, Path(each["path"]), each["content"], mode)
    there = [each["path"] for each in wanted if Path(each["path"]).exists()]
    modes = [path for path in there if module.set_mode_if_different(path, mode, False)]
    diff = [
        {"before": before[path] or "", "after": each["content"], "before_header": path, "after_header": path}
        for each in changed
        if (path := each["path"])
    ]
    module.exit_json(changed=bool(changed or modes), written=[each["path"] for each in changed], diff=diff)


def _text(path: Path) -> str | None:
    """None where there is no file, or one that is no text."""
    try:
        return path.read_bytes().decode()
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _validate(module: AnsibleModule, file: dict) -> None:
    if not file["validate"]:
        return
    with tempfile.TemporaryDirectory(dir=module.tmpdir) as folder:
        copy = Path(folder) / Path(file["path"]).name
        copy.write_bytes(file["content"].encode())
        status, out, error = module.run_command([*file["validate"], str(copy)])
    if status != 0:
        said = (error or out).strip()
        module.fail_json(msg=f"{file['path']} was not written. {' '.join(file['validate'])} says: {said}")


def _write(module: AnsibleModule, path: Path, content: str, mode: str) -> None:
    for folder in reversed([folder for folder in path.parents if not folder.exists()]):
        folder.mkdir()
        folder.chmod(0o755)  # whatever the umask of whoever deploys
    handle, copy = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content.encode())
    module.set_mode_if_different(copy, mode, False)
    module.atomic_move(copy, str(path))


if __name__ == "__main__":
    main()
