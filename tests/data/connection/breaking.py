"""A connection to this machine that is lost while a file is there: what a cut cable is to SSH."""

from __future__ import annotations

import os
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: breaking
short_description: a local connection that can be lost
description: >-
  Lost while the file that BREAKING_CONNECTION names is there; a task that runs a command with BREAKING_AT in it
  makes it. A file REFUSED beside it says that somebody has met it.
extends_documentation_fragment: [connection_pipelining]
options: {}
"""


class Connection(Local):
    transport = "breaking"

    def exec_command(self, cmd, in_data=None, sudoable=True):
        cut, moment = Path(os.environ["BREAKING_CONNECTION"]), os.environ.get("BREAKING_AT", "")
        if moment and moment in cmd:
            cut.touch()
        if cut.exists():
            cut.with_name("refused").touch()
            raise AnsibleConnectionFailure("Connection timed out")
        return super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
