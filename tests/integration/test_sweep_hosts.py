"""One inventory with several hosts: alike ones share the work, unlike ones are campaigns beside each other."""

from __future__ import annotations

import json

import pytest
from conftest import said

from benchmark.campaign.store import Campaign

pytestmark = pytest.mark.slow


def found(site):
    records = Campaign(site.folder / "campaigns", "kimi-k2.6-quick").records()
    names = {}
    for record in records:
        names.setdefault(record.host.name, []).append(record.configuration.name)
    decision = json.loads((site.folder / "campaigns/kimi-k2.6-quick/decision.json").read_text())
    return names, decision


@pytest.mark.long
def test_alike_hosts_share_the_configurations_and_each_has_the_baseline(two):
    done = two.play("sweep.yml", configs="tp8,ep8,pp8", concurrencies="4")
    assert done.returncode == 0, said(done)
    names, decision = found(two)
    assert {host: sorted(set(told)) for host, told in names.items()} == {
        "here": ["ep8", "tp8"],
        "there": ["pp8", "tp8"],
    } or {host: sorted(set(told)) for host, told in names.items()} == {"here": ["pp8", "tp8"], "there": ["ep8", "tp8"]}
    # Decided once over all: the common baseline makes the hosts comparable.
    assert decision["winners_by_host"] == {}
    assert {row["configuration"] for row in decision["ranking"]} == {"tp8", "ep8", "pp8"}
    assert {(e["configuration"], e["host"]) for e in decision["experiments"]} == {
        (name, host) for host, told in names.items() for name in told if name != "tp8"
    }


@pytest.mark.long
def test_unlike_hosts_have_a_campaign_each(two):
    two.hosts["there"]["sglang_service_simulated_hardware"] = "8x H200"
    done = two.play("sweep.yml", configs="tp8,ep8", concurrencies="4")
    assert done.returncode == 0, said(done)
    names, decision = found(two)
    assert {host: sorted(set(told)) for host, told in names.items()} == {
        "here": ["ep8", "tp8"],
        "there": ["ep8", "tp8"],
    }
    # Both measured both, and still neither says anything of the other.
    assert set(decision["winners_by_host"]) == {"here", "there"}


@pytest.mark.long
def test_sharing_can_be_refused(two):
    done = two.play("sweep.yml", configs="tp8,ep8", concurrencies="4", share="false")
    assert done.returncode == 0, said(done)
    names, _ = found(two)
    assert sorted(names["here"]) == sorted(names["there"]) == ["ep8", "tp8"]
