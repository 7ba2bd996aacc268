"""What was installed, for playbooks. Thin: hands over to benchmark.engine and turns its errors into Ansible's."""

from __future__ import annotations

from dataclasses import asdict

from ansible.errors import AnsibleFilterError
from ansible_collections.shardsweep.serving.benchmark.engine.help_text import compare_help


def help_differences(text, release):
    """An engine's help against the flags of its release: {release, missing, unexpected, changed, sentence}."""
    try:
        found = compare_help(text, release)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error
    lists = {name: list(value) for name, value in asdict(found).items() if name != "release"}
    return {"release": found.release, **lists, "sentence": found.sentence}


class FilterModule:
    def filters(self):
        return {"help_differences": help_differences}
