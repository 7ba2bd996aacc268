"""A connection to this machine that is lost while a file is there: what a cut cable is to SSH."""

from __future__ import annotations

import os
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: breaking
short_description: a local connection that can be lost
description: Lost while the file that BREAKING_CONNECTION names is there.
extends_documentation_fragment: [connection_pipelining]
options: {}
"""


class Connection(Local):
    transport = "breaking"

    def exec_command(self, *arguments, **options):
        if Path(os.environ["BREAKING_CONNECTION"]).exists():
            raise AnsibleConnectionFailure("Connection timed out")
        return super().exec_command(*arguments, **options)
