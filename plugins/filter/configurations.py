"""Configurations for playbooks. Each filter hands over to benchmark.engine and turns its errors into Ansible's.

Each task that names a filter loads this anew in its worker; the planner, which is large, waits for its own filters.
"""

from __future__ import annotations

import base64
import json

from ansible.errors import AnsibleFilterError
from ansible_collections.shardsweep.serving.benchmark.engine import configuration as conf
from ansible_collections.shardsweep.serving.benchmark.engine import flags, layout, nodes, unit
from ansible_collections.shardsweep.serving.benchmark.engine import share as sharing


def _said(function, *arguments):
    try:
        return function(*arguments)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


def _planner():
    from ansible_collections.shardsweep.serving.benchmark.engine import sweep

    return sweep


def resolve_configuration(name, catalogue, site=None):
    """One flat configuration by name, dash or underscore."""

    def resolve():
        merged = conf.merge_catalogues(catalogue, site)
        return conf.resolve(conf.find_name(name, merged), merged)

    return _said(resolve)


def json_file(content):
    """The JSON object of a file as ansible.builtin.slurp brings it; {} where it is none: cut off, spoiled, or other.

    Facts say again what can be found out again, so a spoiled one stops nothing.
    """
    try:
        found = json.loads(base64.b64decode(content))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def gpu_places(configuration, environment):
    """Indices of the GPUs that a configuration takes on a host; empty where they are named by UUID."""
    return _said(layout.gpu_places, configuration["engine"], environment) or []


def plan_sweep(wanted, catalogue, site, setting):
    """What a sweep will do: each configuration, resolved, with the plan's verdict; doubtful ones last."""
    return _said(_planner().plan, wanted, catalogue, site, setting)


def plan_command_lines(planned, release, own):
    """Command lines by name, of a plan's configurations that are not rejected."""
    return _said(_planner().command_lines, planned, release, own)


def plan_refused(planned, refused):
    """A plan with those rejected that the engine's own argument parser refuses: {name: its message}."""
    return _said(_planner().refuse, planned, refused)


def share_sweep(plan, hosts, host, groups=None):
    """A host's part of a plan that alike hosts share: each configuration once, the common baseline on each.

    `groups`: nodes that a host is the first of, where those are several.
    """
    return _said(sharing.shared_plan, plan, list(hosts), host, groups)


def gpu_kind(gpus):
    """What of a host's GPUs another host must have too to be one of its kind."""
    return sharing.gpu_kind(gpus)


def sweep_context(entry, release, own, shared):
    """What the host is told of a configuration that it is to measure: itself, its command line, and what all share."""
    configuration = entry["configuration"]
    arguments = [word for line in launch_lines(configuration, release, own) for word in line]
    context = {**shared, "configuration": configuration, "arguments": arguments, "plan": entry.get("plan") or {}}
    several = node_count(configuration)
    return {**context, "nodes": list(own["group"][:several])} if several > 1 else context


def node_count(configuration):
    """Nodes that a configuration is spread over."""
    return _said(nodes.count, configuration)


def on_node(names, catalogue, site, node):
    """Those of these configurations that have a rank on this node, which is not the first."""
    return _said(nodes.on_node, [resolve_configuration(name, catalogue, site) for name in names], node)


def spread(names, catalogue, site):
    """Those of these configurations that the catalogue has, and that are spread over several nodes."""
    known = [name for name in names if name in {**catalogue, **(site or {})}]
    return on_node(known, catalogue, site, 1)


def lacking_nodes(configuration, host, group, seen):
    """Why a host cannot run a configuration over its group; empty if it can."""
    return _said(nodes.lacking, configuration, host, group, seen)


def gpus_seen(hosts, hostvars):
    """{host: its GPUs} of these hosts, by what the task `Ask | look at what serves` saw."""
    seen = {}
    for host in hosts:
        observed = hostvars[host].get("__observed") or {}
        seen[host] = _parsed(observed).get("gpus") or []
    return seen


def nodes_at_fault(results, hosts):
    """The failure of a configuration of several nodes, by the node at fault; {} if none has failed.

    `results` of a verb, in the order of the hosts.
    """
    answers = []
    for host, result in zip(hosts, results, strict=True):
        answer = _parsed(result)
        if "phase" not in answer and (result.get("rc") == 0 or result.get("skipped")):
            answer = {"phase": "ready"}
        answers.append({"host": host, "answer": answer})
    return nodes.cause(answers)


def launch_lines(configuration, release, own):
    """A configuration's command line as a list of flags, each with its values."""
    return _said(flags.launch_lines, configuration["engine"], release, own)


def launch_environment(configuration, own, gpus=None):
    """A configuration's environment over the host's own, as the engine's process is to see it."""
    return _said(conf.launch_environment, configuration["environment"], own, configuration["engine"], gpus)


def communication_run(configuration, own):
    """What the communication check is to imitate of a configuration: {name, environment, engine}."""
    return {
        "name": configuration["name"],
        "environment": launch_environment(configuration, own),
        "engine": configuration["engine"],
    }


def environment_warnings(configuration, own):
    """What of a configuration's environment was taken as it was meant, or may be a mistake: sentences."""
    return _said(conf.environment_warnings, configuration["environment"], own, configuration["engine"])


def fingerprint(value):
    """sha256 of a value, whatever the order of its mappings' keys."""
    return _said(conf.fingerprint, value)


def systemd_argument(value):
    """A value as one word of ExecStart=."""
    return _said(unit.argument, value)


def systemd_optional_path(value):
    """A path that need not be there as one word of ReadWritePaths=."""
    return _said(unit.optional_path, value)


def systemd_assignment(value, name):
    """A variable's value as one assignment of Environment=."""
    return _said(unit.assignment, name, value)


def _parsed(result):
    """The JSON object that a verb printed; {} where it printed none."""
    try:
        answer = json.loads(result.get("stdout") or "{}")
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


class FilterModule:
    def filters(self):
        return {
            "resolve_configuration": resolve_configuration,
            "plan_sweep": plan_sweep,
            "plan_command_lines": plan_command_lines,
            "plan_refused": plan_refused,
            "share_sweep": share_sweep,
            "gpu_kind": gpu_kind,
            "sweep_context": sweep_context,
            "node_count": node_count,
            "gpu_places": gpu_places,
            "json_file": json_file,
            "on_node": on_node,
            "spread": spread,
            "lacking_nodes": lacking_nodes,
            "gpus_seen": gpus_seen,
            "nodes_at_fault": nodes_at_fault,
            "launch_lines": launch_lines,
            "launch_environment": launch_environment,
            "communication_run": communication_run,
            "environment_warnings": environment_warnings,
            "fingerprint": fingerprint,
            "systemd_argument": systemd_argument,
            "systemd_assignment": systemd_assignment,
            "systemd_optional_path": systemd_optional_path,
        }
