# The documentation of the action plugin of this name; nothing is sent to the host but the command line.
DOCUMENTATION = """
module: verb
short_description: Run one verb of Shardsweep's tools
description:
  - Runs a command line on the task's host and gives back what it said, as M(ansible.builtin.command) does.
  - The command is run by the connection itself. No Python module is sent in front of it, which for a verb of a tenth of
    a second is most of the time.
  - Not run in check mode, unless the task says C(check_mode=false).
author: The Shardsweep founders
version_added: 0.1.0
options:
  argv:
    description: The program and its arguments. No shell reads them.
    type: list
    elements: str
    required: true
  stdin:
    description: The verb's standard input, a JSON object for most.
    type: str
    default: ""
  chdir:
    description: The folder to run in.
    type: path
attributes:
  check_mode:
    support: none
  diff_mode:
    support: none
"""

EXAMPLES = """
- name: Look at what serves
  shardsweep.serving.verb:
    argv: "{{ sglang_tools_verb + ['observe'] }}"
  register: observed
  changed_when: false
"""

RETURN = """
stdout:
  description: What the verb answered, one JSON object.
  type: str
  returned: always
stderr:
  description: What went wrong in it, for people.
  type: str
  returned: always
rc:
  description: The exit status; the task fails unless it is 0.
  type: int
  returned: always
"""
