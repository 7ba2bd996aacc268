"""Writes several small text files over the task's connection, in one call of the host's shell."""

from __future__ import annotations

import base64
import hashlib
import shlex
from pathlib import PurePosixPath

from ansible.plugins.action import ActionBase

_REFUSED = 9


class ActionModule(ActionBase):
    """No Python on the host: a module's own start takes longer than all of this."""

    _requires_connection = True
    _supports_check_mode = True
    _supports_async = False
    _supports_diff = True

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        of_a_file = {
            "path": {"type": "path", "required": True},
            "content": {"type": "str", "required": True},
            "validate": {"type": "list", "elements": "str", "default": []},
        }
        _, said = self.validate_argument_spec(
            {
                "files": {"type": "list", "elements": "dict", "required": True, "options": of_a_file},
                "mode": {"type": "str", "default": "0644"},
            }
        )
        files = said["files"]
        before = [self._text(file["path"]) for file in files] if self._task.diff else []
        done = self._sh(script(files, said["mode"], write=not self._task.check_mode))
        if done["rc"] != 0:
            return {"failed": True, "msg": _failure(files, done), "changed": False}
        changed = [int(line) for line in done["stdout_lines"] if line.isdecimal()]
        return {
            "changed": bool(changed),
            "written": [files[place]["path"] for place in changed],
            "diff": [
                {"before": text, "after": file["content"], "before_header": file["path"], "after_header": file["path"]}
                for file, text in zip(files, before, strict=False)
                if text != file["content"]
            ],
        }

    def _text(self, path):
        return self._sh(f"cat {shlex.quote(path)} 2>/dev/null || true")["stdout"]

    def _sh(self, text):
        return self._low_level_execute_command("sh -s", in_data=text.encode())


def _failure(files, done):
    said = done["stderr"].strip()
    if done["rc"] != _REFUSED:
        return f"The files were not written: {said or 'the shell gave no reason'}"
    file = files[int(done["stdout_lines"][-1])]
    return f"{file['path']} was not written. {shlex.join(file['validate'])} says: {said}"


def script(files, mode, *, write):
    """The program for `sh`: it tells the place of each file that differs, and changes it if it is to.

    What is new is laid beside the old, all of it is validated, and only then does each take its place.
    """
    steps = [_compare(place, file, mode) for place, file in enumerate(files)]
    if write:
        steps += [_lay(place, file, mode) for place, file in enumerate(files)]
        steps += [_move(place, file, mode) for place, file in enumerate(files)]
    folders = " ".join(f'"$new{place}"' for place in range(len(files)))
    start = ["set -eu", "umask 022", *(f"new{place}=" for place in range(len(files)))]
    return "\n".join([*start, f"trap 'rm -rf {folders}' EXIT", *steps, ""])


def _compare(place, file, mode):
    path = shlex.quote(file["path"])
    digest = hashlib.sha256(file["content"].encode()).hexdigest()
    return f"""\
text{place}=1 mode{place}=1
if [ -f {path} ]; then
  [ "$(sha256sum < {path} | cut -d ' ' -f 1)" != {digest} ] || text{place}=
  [ "$(stat -c %a {path})" != {int(mode, 8):o} ] || mode{place}=
fi
[ -z "$text{place}$mode{place}" ] || echo {place}"""


def _lay(place, file, mode):
    path = PurePosixPath(file["path"])
    folder, name = shlex.quote(str(path.parent)), shlex.quote(path.name)
    content = base64.b64encode(file["content"].encode()).decode()
    check = shlex.join(file["validate"])
    validate = f'{check} "$new{place}"/{name} >&2 || {{ echo {place}; exit {_REFUSED}; }}' if check else ":"
    return f"""\
if [ -n "$text{place}" ]; then
  mkdir -p {folder}
  new{place}=$(mktemp -d {folder}/.new.XXXXXX)
  printf %s {content} | base64 -d > "$new{place}"/{name}
  chmod {mode} "$new{place}"/{name}
  {validate}
fi"""


def _move(place, file, mode):
    path, name = shlex.quote(file["path"]), shlex.quote(PurePosixPath(file["path"]).name)
    return f"""\
if [ -n "$text{place}" ]; then
  mv -f "$new{place}"/{name} {path}
elif [ -n "$mode{place}" ]; then
  chmod {mode} {path}
fi"""
