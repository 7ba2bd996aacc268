# The documentation of the action plugin of this name; no Python is sent to the host.
DOCUMENTATION = """
module: files
short_description: Write several small text files
description:
  - Writes text files, each whole or not at all, and only where they differ from what is there. Folders that are missing
    are made.
  - By one call of the host's shell, and no Python on the host, where M(ansible.builtin.template) starts two for each
    file. The text comes from the lookup P(ansible.builtin.template#lookup).
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
    description: Permissions of each file, octal.
    type: str
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
