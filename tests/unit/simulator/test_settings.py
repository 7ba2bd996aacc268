"""The simulated engine's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.simulator.settings import FAULT_KINDS, Faults, Settings, SettingsError, parse_amount


def test_nothing_set() -> None:
    settings = Settings.from_environment({})
    assert settings.release == "0.5.11"
    assert settings.hardware == "8x RTX PRO 6000 Blackwell"
    assert settings.ledger is None
    assert settings.start_seconds == 3.0
    assert not settings.faults.requested


def test_everything_set() -> None:
    settings = Settings.from_environment(
        {
            "SHARDSWEEP_SIMULATED_RELEASE": "0.5.23",
            "SHARDSWEEP_SIMULATED_HARDWARE": "2x H200",
            "SHARDSWEEP_SIMULATED_GPU": "/run/gpus",
            "SHARDSWEEP_SIMULATED_START_SECONDS": "0",
            "SHARDSWEEP_SIMULATED_SPEED": "10",
            "SHARDSWEEP_SIMULATED_FAULT": "leak:8G, orphan",
            "SHARDSWEEP_SIMULATED_SEED": "7",
        }
    )
    assert settings == Settings(
        "0.5.23", "2x H200", Path("/run/gpus"), 0.0, 10.0, Faults({"leak": 8 * 2**30, "orphan": 0.0}), 7
    )


@pytest.mark.parametrize(("text", "amount"), [("5", 5), ("2.5", 2.5), ("8G", 8 * 2**30), ("3 MiB", 3 * 2**20)])
def test_amounts(text: str, amount: float) -> None:
    assert parse_amount(text) == amount


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("FAULT", "explode", "no kind 'explode'"),
        ("FAULT", "leak", "leak needs an argument"),
        ("FAULT", "hang_init:3", "hang_init takes no argument"),
        ("FAULT", "crash_at_token:soon", "'soon' is no amount"),
        ("START_SECONDS", "fast", "positive number"),
        ("START_SECONDS", "nan", "positive number"),
        ("SPEED", "0", "positive number"),
        ("SEED", "-1", "whole number"),
    ],
)
def test_what_makes_no_sense_is_said(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Settings.from_environment({f"SHARDSWEEP_SIMULATED_{name}": value})


def test_every_kind_of_fault_can_be_asked_for() -> None:
    for kind in FAULT_KINDS:
        assert any(kind in Faults.parse(text) for text in (kind, f"{kind}:1") if _parses(text))


def _parses(text: str) -> bool:
    try:
        Faults.parse(text)
    except SettingsError:
        return False
    return True
