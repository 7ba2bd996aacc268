"""The command `shardsweep`. A command is a playbook or a pure function; what is heavy is imported where used."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from . import __version__

application = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Finds by measurement how to split a mixture-of-experts model over the GPUs of a PCIe host.",
)

Inventory = Annotated[list[str] | None, typer.Option("-i", "--inventory", help="As ansible-playbook's.")]
Limit = Annotated[str | None, typer.Option("--limit", help="Only these hosts.")]
Variables = Annotated[list[str] | None, typer.Option("-e", "--extra-vars", metavar="KEY=VALUE", help="A variable.")]
Yes = Annotated[bool, typer.Option("--interrupt", help="Stop what serves without asking.")]


def _console() -> Console:
    """A pipe has no width; a log is read at a hundred columns."""
    console = Console()
    return console if console.is_terminal else Console(width=100)


class ExitStatus(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130


def _version(wanted: bool) -> None:
    if wanted:
        Console().print(f"shardsweep {__version__}", highlight=False)
        raise typer.Exit


@application.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    pass


@application.command()
def sweep(
    configurations: Annotated[list[str] | None, typer.Argument(help="Which; all of the catalogue without.")] = None,
    concurrencies: Annotated[str | None, typer.Option(help="The ladder, such as 1,8,64.")] = None,
    workload: Annotated[str | None, typer.Option(help="A shipped workload: quick, chat, long_prompt, prose.")] = None,
    confidence: Annotated[str | None, typer.Option(help="full, or quick: one start each, no close calls.")] = None,
    budget: Annotated[float | None, typer.Option(help="Minutes; what does not fit is deferred.")] = None,
    objective: Annotated[str | None, typer.Option(help="What wins: peak, throughput@64, single_stream, ...")] = None,
    retry: Annotated[str | None, typer.Option(help="Measured again: may_pass, failed, all or none.")] = None,
    after: Annotated[str | None, typer.Option(help="What runs afterwards: previous, winner or stopped.")] = None,
    interrupt: Yes = False,
    inventory: Inventory = None,
    limit: Limit = None,
    extra: Variables = None,
    as_json: Annotated[bool, typer.Option("--json", help="The decision as JSON on standard output.")] = False,
) -> None:
    """Measure the configurations, and write the report."""
    from .campaign.command import sweep_command

    given = (
        ("configs", ",".join(configurations or [])),
        ("concurrencies", concurrencies),
        ("workload", workload),
        ("confidence", confidence),
        ("budget", budget),
        ("objective", objective),
        ("retry", retry),
        ("after", after),
        ("interrupt", interrupt or None),
    )
    variables = {name: value for name, value in given if value}
    told = _checked(extra)
    raise typer.Exit(sweep_command(inventory or [], limit, variables, _console(), extra=told, as_json=as_json))


@application.command()
def deploy(
    configuration: Annotated[str, typer.Argument(help="A configuration of the catalogue.")],
    interrupt: Yes = False,
    inventory: Inventory = None,
    limit: Limit = None,
    extra: Variables = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; show what would change.")] = False,
) -> None:
    """Put one configuration into service."""
    variables: dict[str, Any] = {"config": configuration}
    if interrupt:
        variables["interrupt"] = True
    _play("deploy.yml", inventory, limit, extra, variables, ("--check", "--diff") if check else ())


@application.command()
def promote(
    configuration: Annotated[str | None, typer.Argument(help="A configuration; the campaign's winner without.")] = None,
    rollback: Annotated[bool, typer.Option("--rollback", help="Bring back what served before.")] = False,
    interrupt: Yes = False,
    inventory: Inventory = None,
    limit: Limit = None,
    extra: Variables = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; show what would change.")] = False,
) -> None:
    """Put the winner into service for good: enabled, restarted on failure."""
    given = (("config", configuration), ("rollback", rollback), ("interrupt", interrupt))
    variables = {name: value for name, value in given if value}
    _play("playbooks/promote.yml", inventory, limit, extra, variables, ("--check", "--diff") if check else ())


@application.command()
def plan(
    configurations: Annotated[list[str] | None, typer.Argument(help="Which; all of the catalogue without.")] = None,
    model: Annotated[str, typer.Option(help="A config.json, its folder, or a shipped shape.")] = "kimi-k2.6",
    hardware: Annotated[str, typer.Option(help="Count and GPU, or nvidia-smi's CSV.")] = "8x RTX PRO 6000 Blackwell",
    release: Annotated[str, typer.Option(help="The SGLang release.")] = "0.5.11",
    workload: Annotated[str, typer.Option(help="A shipped workload.")] = "chat",
    concurrencies: Annotated[str, typer.Option(help="The ladder.")] = "1,8,64,256",
    catalogue: Annotated[str | None, typer.Option(help="A YAML file of configurations; - for JSON on stdin.")] = None,
    search: Annotated[bool, typer.Option("--search", help="Every split of the host, ranked, ready to paste.")] = False,
    explain: Annotated[
        str | None, typer.Option(metavar="RULE", help="What a rule demands, and why; `list` names them.")
    ] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Campaigns that correct the plan; ./campaigns without.")
    ] = None,
    no_calibration: Annotated[bool, typer.Option("--no-calibration", help="Plan from assumptions alone.")] = False,
    host: Annotated[str, typer.Option(help="Whose records; of several alike, the last measured without.")] = "",
    simulated: Annotated[bool, typer.Option("--simulated", help="Plan the simulated engine, by its records.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON on standard output.")] = False,
) -> None:
    """Say what would run, fit and win, before any host is touched. Exit status 1 when one is rejected."""
    from .campaign.plan_command import Evidence, explain_command, plan_command

    if explain:
        raise typer.Exit(explain_command(explain, _console()))
    status = plan_command(
        configurations or [],
        model=model,
        hardware=hardware,
        release=release,
        workload=workload,
        ladder=_ladder(concurrencies),
        catalogue=catalogue,
        find=search,
        as_json=as_json,
        console=_console(),
        evidence=Evidence(calibrate, off=no_calibration, simulated=simulated, host_name=host),
    )
    raise typer.Exit(status)


@application.command()
def status(inventory: Inventory = None, limit: Limit = None, extra: Variables = None) -> None:
    """Show what runs, since when, and the last failure."""
    _play("playbooks/status.yml", inventory, limit, extra)


@application.command()
def stop(inventory: Inventory = None, limit: Limit = None, extra: Variables = None) -> None:
    """Stop what serves, and prove it gone."""
    _play("playbooks/stop.yml", inventory, limit, extra)


@application.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A campaign's folder.", exists=True, file_okay=False)],
) -> None:
    """Write the report of a campaign again, from its records."""
    from .campaign.command import report_command

    raise typer.Exit(report_command(folder, _console()))


@application.command()
def compare(
    before: Annotated[str, typer.Argument(help="A campaign's folder, or a shipped reference.")],
    after: Annotated[str, typer.Argument(help="Another.")],
) -> None:
    """Say what changed between two campaigns, and what got better or worse beyond noise."""
    from .campaign.command import compare_command

    raise typer.Exit(compare_command(before, after, _console()))


@application.command()
def measure(
    url: Annotated[str, typer.Argument(help="A running server, such as http://127.0.0.1:30000.")],
    concurrencies: Annotated[str, typer.Option(help="The ladder.")] = "1,4,16,64",
    workload: Annotated[
        str, typer.Option(help="A shipped workload, or the path of a .json file with the keys of one.")
    ] = "chat",
    also: Annotated[
        list[str] | None, typer.Option(metavar="WORKLOAD@C", help="A point after the ladder; long_prompt@1 without.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Also an open loop, at so many requests a second.")] = None,
    ttft_limit: Annotated[float | None, typer.Option(help="Seconds, for its goodput.")] = None,
    tpot_limit: Annotated[float | None, typer.Option(help="Seconds a token, for its goodput.")] = None,
    answers: Annotated[bool, typer.Option(help="Ask fixed prompts at temperature 0, for the record.")] = True,
    route: Annotated[str, typer.Option(help="generate, completions, chat, or auto.")] = "auto",
    model: Annotated[str | None, typer.Option(help="The model's name at the server; its first without.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header, such as a key.")] = None,
    name: Annotated[str, typer.Option(help="What the report calls this server.")] = "server",
    folder: Annotated[Path | None, typer.Option(help="Where the record and the requests are kept.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measure the ladder so often.")] = 1,
    telemetry: Annotated[bool, typer.Option(help="Read this machine's GPUs meanwhile.")] = True,
) -> None:
    """Benchmark any running OpenAI-compatible or SGLang server."""
    from .campaign.measure_command import measure_command

    headers = dict(pair.partition("=")[::2] for pair in header or [])
    status = measure_command(
        url,
        ladder=_ladder(concurrencies),
        workload=workload,
        also=also if also is not None else ["quick_long@1" if workload == "quick" else "long_prompt@1"],
        rate=rate,
        ttft_limit=ttft_limit,
        tpot_limit=tpot_limit,
        answers=answers,
        route=route,
        model=model,
        headers=headers,
        name=name,
        folder=folder,
        repeats=repeats,
        telemetry=telemetry,
        console=_console(),
    )
    raise typer.Exit(status)


@application.command()
def schema() -> None:
    """Print the JSON schema of a record."""
    from .campaign.record import schema as record_schema

    sys.stdout.write(json.dumps(record_schema(), indent=1) + "\n")


def _play(
    playbook: str,
    inventory: list[str] | None,
    limit: str | None,
    extra: list[str] | None,
    variables: Mapping[str, Any] | None = None,
    further: tuple[str, ...] = (),
) -> NoReturn:
    from .campaign.playbooks import NoProject, command_line, run_plain

    try:
        with command_line(inventory or [], limit, _checked(extra), variables or {}, further) as arguments:
            status = run_plain(playbook, arguments)
    except NoProject as error:
        Console(stderr=True).print(str(error), style="red", highlight=False)
        raise typer.Exit(ExitStatus.USAGE) from None
    raise typer.Exit(status)


def _ladder(text: str) -> list[int]:
    try:
        rungs = [int(part) for part in text.split(",")]
    except ValueError:
        rungs = [0]
    if min(rungs) < 1:
        raise typer.BadParameter(
            f"'{text}' is not a list of whole numbers such as 1,8,64.", param_hint="--concurrencies"
        )
    return rungs


def _checked(extra: list[str] | None) -> list[str]:
    """`-e key=value` pairs, and `-e @file.yml`, such as what `plan --search` prints."""
    from .campaign.extra import ExtraError, readable

    try:
        readable(extra or [])
    except ExtraError as error:
        raise typer.BadParameter(str(error), param_hint="-e") from None
    return extra or []
