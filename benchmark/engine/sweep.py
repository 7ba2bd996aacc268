"""What a sweep will do, before any host is touched: the configurations in their order, each with its verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import nodes
from .calibration import Calibration, from_campaigns, read_records
from .configuration import merge_catalogues, resolve, runnable_names
from .flags import launch_arguments
from .hardware import Host, UnknownHardware, allreduce_rows, find_host, nccl_variables
from .models import ModelShape, UnknownModel, from_config, load_model
from .plan import plan_configuration
from .rules.command import ENGINE_PARSER
from .rules.parallel import NODES_THERE


def plan(
    wanted: str | Sequence[str] | None,
    catalogue: Mapping[str, Any],
    site: Mapping[str, Any] | None,
    setting: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """The sweep's configurations, each behind its baseline, doubtful ones last.

    Args:
        wanted: names, `"ep8,ep4"` or a list; all that are not abstract where empty.
        setting: {"release", "model": path or shipped name, "model_config": its config.json, "gpus": [{"name"}],
            "allreduce": what the host's communication check measured (hardware.allreduce_rows),
            "environment": of every engine on the host,
            "campaigns": a folder whose records correct the plan, "host": whose, "simulated": whether it is a simulated
            engine's plan (calibration.from_campaigns),
            "workload": {...}, "ladder": [...], "plan": "on" | "off",
            "group", "seen": the hosts of its group (nodes.lacking)}. With `off` only what certainly cannot start is
            rejected, and what will not fit is tried.

    Returns:
        [{"name", "verdict": "runs" | "doubtful" | "rejected", "sentence", "configuration", "workload", "plan"}].

    Raises:
        ConfigurationError: an unknown name, a circle, a bad entry.
    """
    merged = merge_catalogues(catalogue, site)
    shape = known_model(setting.get("model"), setting.get("model_config"))
    host = _host(setting)
    calibration = None
    if setting.get("campaigns") and shape and host:
        calibration = from_campaigns(
            read_records(Path(setting["campaigns"])),
            shape,
            host,
            setting["release"],
            simulated=str(setting.get("simulated", False)).lower() in ("true", "yes", "on", "1"),
            host_name=str(setting.get("host") or ""),
        )
    wanted_names = runnable_names(merged, wanted)
    entries = [_entry(resolve(name, merged), shape, host, setting, calibration) for name in wanted_names]
    return sorted(entries, key=lambda entry: entry["verdict"] == "doubtful")


def command_lines(planned: Sequence[Mapping[str, Any]], release: str, own: Mapping[str, Any]) -> dict[str, list[str]]:
    """The command lines of a plan's configurations that are not rejected, to ask the engine's own parser about."""
    lines = {}
    for entry in planned:
        if entry["verdict"] != "rejected":
            # What cannot be written as a command line at all is said when it is to be served.
            with contextlib.suppress(ValueError):
                lines[entry["name"]] = launch_arguments(entry["configuration"]["engine"], release, own)
    return lines


def refuse(planned: Sequence[Mapping[str, Any]], refused: Mapping[str, str]) -> list[dict[str, Any]]:
    """The plan once the engine's own argument parser has been asked; `refused` has its message by configuration."""
    entries = []
    for entry in planned:
        message = refused.get(entry["name"])
        if message is None or entry["verdict"] == "rejected":
            entries.append(dict(entry))
            continue
        sentence = f"The engine's own argument parser refuses it: {message}"
        verdict = ENGINE_PARSER.verdict("reject", sentence, message=f"error: {message}")
        rejected = {"verdict": "rejected", "sentence": f"{sentence} {verdict.advice}"}
        plan_ = {**entry["plan"], **rejected, "risk": "does not start"}
        entries.append({**entry, **rejected, "plan": plan_ | {"rules": [asdict(verdict), *plan_.get("rules", [])]}})
    return entries


def known_model(source: Any, config: Mapping[str, Any] | None = None) -> ModelShape | None:
    """The model's shape from its config.json, else by its path or name; None where it is not known."""
    try:
        if config:
            return from_config(config, str(source or "model").rstrip("/").rpartition("/")[2])
        return load_model(str(source)) if source else None
    except (UnknownModel, OSError, ValueError):
        return None


def known_host(gpus: Sequence[Mapping[str, Any]], **changes: Any) -> Host | None:
    """The host that these GPUs make; None where one of the GPUs is not in the table. `changes`: as `find_host` takes
    them. The slowest slot counts, where the host tells its PCIe generation.
    """
    if not gpus:
        return None
    if generations := [int(gpu["pcie_generation_max"]) for gpu in gpus if gpu.get("pcie_generation_max")]:
        changes = {"pcie_generation": min(generations)} | changes
    try:
        return find_host(f"{len(gpus)}x {gpus[0]['name']}", **changes)
    except UnknownHardware:
        return None


def _host(setting: Mapping[str, Any]) -> Host | None:
    return known_host(
        setting.get("gpus") or [],
        allreduce=allreduce_rows(setting.get("allreduce")),
        environment=nccl_variables(setting.get("environment") or {}),
    )


def _entry(
    configuration: dict[str, Any],
    shape: ModelShape | None,
    host: Host | None,
    setting: Mapping[str, Any],
    calibration: Calibration | None,
) -> dict[str, Any]:
    workload, ladder = setting.get("workload"), setting.get("ladder") or []
    planned = plan_configuration(configuration, shape, host, setting["release"], workload, ladder, calibration)
    verdict, sentence = planned["verdict"], planned["sentence"]
    refused = any(rule["severity"] == "reject" for rule in planned.get("rules", []))
    if verdict != "rejected" and (why := _lacking(configuration, setting)):
        absent = NODES_THERE.verdict("reject", why)
        verdict, sentence, refused = "rejected", f"{why} {absent.advice}", True
        planned |= {"verdict": verdict, "sentence": sentence, "risk": "does not start"}
        planned["rules"] = [asdict(absent), *planned["rules"]]
    if verdict == "rejected" and str(setting.get("plan", "on")).lower() in ("off", "false", "no") and not refused:
        verdict = "runs"
    return {
        "name": configuration["name"],
        "verdict": verdict,
        "sentence": sentence,
        "configuration": configuration,
        "workload": setting.get("workload"),
        "plan": planned,
    }


def _lacking(configuration: Mapping[str, Any], setting: Mapping[str, Any]) -> str:
    if "group" not in setting:
        return ""
    return nodes.lacking(configuration, str(setting["host"]), setting["group"], setting["seen"])
