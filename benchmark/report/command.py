"""The launch command and the unit of a record, ready to copy, secrets removed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from ..campaign.record import Record
from ..engine import unit as systemd
from ..engine.secrets import REMOVED, is_secret, masked, without_credentials
from .text import clean


def without_secrets(arguments: Iterable[str]) -> list[str]:
    """The arguments with the value of every secret flag replaced, in both spellings (`--x v`, `--x=v`)."""
    shown: list[str] = []
    hide_next = False
    for argument in map(str, arguments):
        name, equals, _ = argument.partition("=")
        if argument.startswith("--"):
            secret = is_secret(name)
            hide_next = secret and not equals
            shown.append(f"{name}={REMOVED}" if secret and equals else argument)
        elif hide_next:
            shown.append(REMOVED)
            hide_next = False
        else:
            shown.append(without_credentials(argument))
    return shown


def environment(record: Record) -> dict[str, str]:
    """The configuration's variables, secret ones with their value removed."""
    return {
        str(name): REMOVED if is_secret(str(name)) else without_credentials(str(value))
        for name, value in sorted(record.configuration.environment.items())
    }


def flag_lines(arguments: list[str]) -> list[list[str]]:
    """The command split where a person would: the program, then one flag with its values a line."""
    lines: list[list[str]] = [[]]
    for argument in arguments:
        if argument.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(argument)
    return [line for line in lines if line]


def _command(record: Record) -> list[str]:
    """The record's command without secrets; where it holds flags alone, behind SGLang's own program."""
    arguments = without_secrets(record.configuration.arguments)
    bare = bool(arguments) and arguments[0].startswith("--")
    return ["python3", "-m", "sglang.launch_server", *arguments] if bare else arguments


def launch_command(record: Record) -> str:
    """A shell command, one flag a line; empty where the record holds no command."""
    arguments = _command(record)
    if not arguments:
        return ""
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment(record).items()]
    lines = [*variables, *(shlex.join(line) for line in flag_lines(arguments))]
    return " \\\n  ".join(lines)


def unit(record: Record) -> str:
    """A systemd unit that serves this configuration; empty where the record's command is missing or fits no unit."""
    arguments = _command(record)
    if not arguments:
        return ""
    try:
        settings = [f"Environment={systemd.assignment(k, v)}" for k, v in environment(record).items()]
        command = " \\\n  ".join(" ".join(map(systemd.argument, line)) for line in flag_lines(arguments))
    except systemd.UnitError:
        return ""
    name = clean(f"{record.model.name} as {record.configuration.name}").replace("%", "%%")
    return "\n".join(
        [
            "[Unit]",
            f"Description=SGLang: {name}",
            "After=network.target",
            "",
            "[Service]",
            "Type=exec",
            "# User= an account that may read the model",
            *settings,
            f"ExecStart={command}",
            "Restart=on-failure",
            "RestartSec=30",
            f"ExecStop={systemd.ASK_TO_END}",
            "TimeoutStopSec=120",
            "KillMode=control-group",
            "KillSignal=SIGKILL",
            "SuccessExitStatus=143 SIGKILL",
            "LimitMEMLOCK=infinity",
            "LimitNOFILE=1048576",
            "TasksMax=infinity",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def hide_in_text(text: str) -> str:
    """Free text (a unit, log lines) with the values of secret flags and variables removed."""
    return masked(text)
