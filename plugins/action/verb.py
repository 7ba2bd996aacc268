"""Runs one verb of Shardsweep's tools over the task's connection."""

from __future__ import annotations

import contextlib
import ctypes
import json
import shlex
import signal

from ansible.plugins.action import ActionBase

_PR_SET_PDEATHSIG = 1


class ActionModule(ActionBase):
    """As the module `command`, without a Python of the module's own around the command.

    Some twenty verbs are asked for each engine start; starting a second interpreter for each, unpacking a module in it
    and importing Ansible's library there takes longer than most of them.
    """

    _requires_connection = True
    _supports_check_mode = False
    _supports_async = False

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        _end_with_controller()

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _, said = self.validate_argument_spec(
            {
                "argv": {"type": "list", "elements": "str", "required": True},
                "stdin": {"type": "str", "default": ""},
                "chdir": {"type": "path"},
            }
        )
        command = f"{self._compute_environment_string()} {shlex.join(said['argv'])}".strip()
        # Never without input: ssh would ask for a terminal then, which mixes standard error into the answer.
        folder = said["chdir"] and shlex.quote(said["chdir"])
        given = said["stdin"].encode() + b"\n"
        done = self._low_level_execute_command(command, in_data=given, chdir=folder)
        result = {"changed": False, "cmd": said["argv"], **done}
        if done["rc"] != 0:
            result |= {"failed": True, "msg": _reason(done)}
        return result


def _end_with_controller():
    """Let the kernel end this worker when the controller is killed, where it can (Linux: prctl(2), PR_SET_PDEATHSIG).

    A worker has a session of its own. It would ask on, and so keep the host from the next sweep, and then wait for ever
    in a pipe that nobody reads.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _reason(done):
    """Why a verb failed: its own word, else the last that its program said."""
    try:
        said = json.loads(done.get("stdout") or "")
    except ValueError:
        said = None
    if isinstance(said, dict) and isinstance(said.get("error"), str):
        return said["error"]
    lines = [line.strip() for line in (done.get("stderr") or "").splitlines() if line.strip()]
    return lines[-1] if lines else f"It ended with status {done['rc']} and said nothing."
