"""The command `plan`: what each configuration would do, before any host is touched."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from ..engine import configuration as conf
from ..engine.calibration import Calibration, from_campaigns, measured_host, read_records
from ..engine.hardware import GIB, Host, UnknownHardware, find_host, from_nvidia_smi
from ..engine.models import ModelShape, UnknownModel, load_model
from ..engine.plan import plan_configuration
from ..engine.rules import explain, rules
from ..engine.search import search
from ..engine.share import baseline_of
from ..load.workload import WorkloadError, named
from .playbooks import PROJECT

CATALOGUE = PROJECT / "group_vars/all/configs.yml"
# As for a sweep: below the folder that the user stands in.
CAMPAIGNS = Path("campaigns")

# Wider than any table.
NO_LIMIT = 10_000
_RUNS, _REJECTED, _USAGE = 0, 1, 2


class PlanError(Exception):
    """What was asked cannot be planned; the text says why and what can."""


def read_catalogue(source: str | None) -> dict[str, dict[str, Any]]:
    """A catalogue from a YAML file (its `sglang_configs` and `sglang_site_configs`), from standard input as JSON
    (`-`), or the project's own.

    Raises:
        PlanError: it cannot be read, with the line where YAML breaks.
    """
    path = Path(source) if source else CATALOGUE
    try:
        content = yaml.safe_load(sys.stdin.read() if source == "-" else path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"The catalogue {path} cannot be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        raise PlanError(f"The catalogue {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping):
        raise PlanError(f"The catalogue {path} holds no configurations.")
    if "sglang_configs" in content or "sglang_site_configs" in content:
        return conf.merge_catalogues(content.get("sglang_configs"), content.get("sglang_site_configs"))
    return conf.merge_catalogues(content)


def read_hardware(text: str) -> Host:
    """A host by count and GPU, or from what `nvidia-smi --query-gpu=name,memory.total,pcie.link.gen.max --format=csv`
    printed there: a file of it, or its lines.

    Raises:
        UnknownHardware: neither, or a GPU that is not in the table.
    """
    if "\n" in text.strip():
        return from_nvidia_smi(text)
    try:
        return from_nvidia_smi(Path(text).read_text(encoding="utf-8")) if Path(text).is_file() else find_host(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UnknownHardware(f"{text} cannot be read as what nvidia-smi printed: {error}") from error


@dataclass(frozen=True)
class Evidence:
    """Where to look for what a host measured."""

    folder: Path | None = None
    """A folder of campaigns, a campaign, or None for those below the current folder."""
    off: bool = False
    simulated: bool = False
    """Whether the plan is of a simulated engine: only its own kind of records counts."""
    host_name: str = ""

    def measured(self, host: Host, release: str) -> Host:
        """The host with the all-reduces of its last communication check that a record tells of."""
        if self.off:
            return host
        kept = read_records(self.folder or CAMPAIGNS)
        return measured_host(kept, host, release, simulated=self.simulated, host_name=self.host_name)

    def calibration(self, shape: ModelShape, host: Host, release: str) -> Calibration | None:
        """Raises:
        PlanError: the folder was named and does not exist, or nothing in it is of this host.
        """
        if self.off:
            return None
        folder = self.folder or CAMPAIGNS
        found = from_campaigns(
            read_records(folder), shape, host, release, simulated=self.simulated, host_name=self.host_name
        )
        if self.folder and found is None:
            whose = f" named {self.host_name}" if self.host_name else ""
            engine = "simulated SGLang" if self.simulated else "SGLang"
            raise PlanError(
                f"Nothing below {folder} was measured on {host.name}{whose} with {engine} {release}, so it calibrates "
                "nothing. Name another folder, or leave --calibrate out."
            )
        return found


def plan_command(
    names: list[str],
    *,
    model: str,
    hardware: str,
    release: str,
    workload: str,
    ladder: list[int],
    catalogue: str | None,
    find: bool,
    as_json: bool,
    console: Console,
    evidence: Evidence = Evidence(),
) -> int:
    """Show the plan of the configurations, or of every split of the host.

    Returns:
        0 when all of them run, 1 when one is rejected, 2 when something asked for does not exist.
    """
    try:
        shape, host = load_model(model), evidence.measured(read_hardware(hardware), release)
        work = named(workload).to_mapping()
        calibration = evidence.calibration(shape, host, release)
        known = read_catalogue(catalogue)
        if find:
            base = _base(known)
            return _search(shape, host, release, work, ladder, base, calibration, console, as_json=as_json)
        wanted = [conf.resolve(name, known) for name in conf.runnable_names(known, names or None)]
    except (UnknownModel, UnknownHardware, WorkloadError, PlanError, ValueError) as error:
        Console(stderr=True).print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        return _USAGE
    plans = [plan_configuration(entry, shape, host, release, work, ladder, calibration) for entry in wanted]
    if as_json:
        sys.stdout.write(json.dumps(plans, indent=1) + "\n")
    else:
        console.print(f"{shape.name} on {host.name}, SGLang {release}, workload {workload}", highlight=False)
        _say_evidence(calibration, host, console)
        show_table(plans, console)
        for plan in plans:
            told_by = f" (rule: {', '.join(plan['told_by'])})" if plan["told_by"] else ""
            console.print(f"{plan['name']}: {plan['sentence']}{told_by}", highlight=False, markup=False, soft_wrap=True)
        if any(plan["told_by"] for plan in plans):
            console.print("shardsweep plan --explain RULE tells more of a rule.", style="dim", highlight=False)
        console.print("Predictions are ranges, not measurements.", style="dim")
    return _REJECTED if any(plan["verdict"] == "rejected" for plan in plans) else _RUNS


def _say_evidence(calibration: Calibration | None, host: Host, console: Console) -> None:
    """What the plan rests on besides its assumptions."""
    if calibration:
        console.print(f"calibrated on {calibration.source}", highlight=False, markup=False, soft_wrap=True)
    if host.allreduce:
        groups = ", ".join(str(group) for group in sorted({row.group for row in host.allreduce}))
        console.print(f"all-reduces as this host's check measured them, over {groups} GPUs", highlight=False)


def show_table(plans: list[dict[str, Any]], console: Console) -> None:
    """The table, with the risks below it where the screen is too narrow for a column of them."""
    table = plan_table(plans)
    if Measurement.get(console, console.options.update(max_width=NO_LIMIT), table).minimum <= console.width:
        console.print(table, highlight=False)
        return
    console.print(plan_table(plans, risks=False), highlight=False)
    of_risk: dict[str, list[str]] = {}
    for plan in plans:
        of_risk.setdefault(plan["risk"], []).append(plan["name"])
    for risk, names in of_risk.items():
        console.print(f"risk {risk}: {', '.join(names)}", highlight=False, markup=False)


def plan_table(plans: list[dict[str, Any]], *, risks: bool = True) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2 if risks else 1, 0, 0))
    table.add_column("configuration" if risks else "split", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for name in ("GPUs", "weights\nGiB/GPU", "KV cache\ntokens", "streams\nreached", "one user\ntok/s", "peak\ntok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    if risks:
        table.add_column("risk", min_width=20)
    for plan in plans:
        speed = plan["speed"] or {}
        cells = [
            plan["name"],
            plan["verdict"],
            f"{plan['gpus_used'] or '?'}/{plan['gpus_there'] or '?'}",
            f"{plan['weights_bytes'] / GIB:.1f}" if plan["weights_bytes"] else "",
            f"{plan['kv_tokens']:,}" if plan["kv_tokens"] else "",
            str(plan["concurrency_reached"] or ""),
            _range(speed.get("single_user")),
            _range(speed.get("peak")),
        ]
        table.add_row(*cells, *([escape(plan["risk"])] if risks else []))
    return table


def _range(value: Mapping[str, float] | None) -> str:
    return f"{value['low']:,.0f}-{value['high']:,.0f}" if value else ""


def _base(catalogue: Mapping[str, Any]) -> dict[str, Any]:
    """The environment of the catalogue's baseline, which a search's entries have too; it takes all GPUs by itself."""
    configurations = [conf.resolve(name, catalogue) for name in conf.runnable_names(catalogue, None)]
    root = baseline_of(configurations)
    environment = next((c["environment"] for c in configurations if c["name"] == root), {})
    return {"environment": {key: value for key, value in environment.items() if key != "CUDA_VISIBLE_DEVICES"}}


def _search(
    shape: ModelShape,
    host: Host,
    release: str,
    work: Mapping[str, Any],
    ladder: list[int],
    base: Mapping[str, Any],
    calibration: Calibration | None,
    console: Console,
    *,
    as_json: bool,
) -> int:
    found = search(shape, host, release, work, ladder, base, calibration)
    if as_json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return _RUNS
    count = host.count * host.nodes
    console.print(
        f"{len(found)} splits and transports of {shape.name} over all {count} GPUs of {host.name}, best first",
        highlight=False,
    )
    _say_evidence(calibration, host, console)
    show_table([entry["plan"] for entry in found], console)
    entries = {entry["name"]: entry["entry"] for entry in found if entry["plan"]["verdict"] != "rejected"}
    console.print("\nAs catalogue entries:", style="dim")
    sys.stdout.write(yaml.safe_dump({"sglang_site_configs": entries}, sort_keys=False, width=100))
    return _RUNS


def explain_command(rule: str, console: Console) -> int:
    """Print one rule: what it demands, why, and what to do; or, for `list`, every rule's name and title."""
    if rule == "list":
        for known in rules():
            console.print(f"{known.id}: {known.title}", highlight=False, markup=False, soft_wrap=True)
        return _RUNS
    try:
        found = explain(rule)
    except (KeyError, ValueError) as error:
        Console(stderr=True).print(str(error).strip("'\""), style="red", highlight=False, soft_wrap=True)
        return _USAGE
    console.print(found.title, style="bold", highlight=False)
    console.print(found.text, highlight=False, markup=False, soft_wrap=True)
    if found.engine_message:
        console.print(f"The engine says: {found.engine_message}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"Instead: {found.advice}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"Source: {found.source}", style="dim", highlight=False, markup=False, soft_wrap=True)
    return _RUNS
