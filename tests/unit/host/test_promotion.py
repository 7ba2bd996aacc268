from __future__ import annotations

import time

import pytest

from benchmark.host import promotion
from benchmark.host.services import ServiceState
from benchmark.host.settings import HostError, Settings, read_json, write_json


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(promotion, "manager_for", lambda _: None)
    return Settings(state=tmp_path, unit_directory=tmp_path / "units", manager="supervisor")


def serves(settings, monkeypatch, unit, fingerprint, text):
    """What a switch leaves behind once a unit is ready."""
    monkeypatch.setattr(promotion, "serving_units", lambda *_: [unit])
    write_json(settings.state / "running.json", {unit: {"ready_fingerprint": fingerprint}})
    ready = settings.state / "ready" / unit / f"{unit}.conf"
    ready.parent.mkdir(parents=True, exist_ok=True)
    ready.write_text(text)


def test_the_same_configuration_with_other_settings_can_be_rolled_back(settings, monkeypatch):
    serves(settings, monkeypatch, "sglang-ep4", "old", "as it was")
    before = promotion.prepare(settings, "ep4", "new", [])
    assert before["units"] == ["sglang-ep4"]
    serves(settings, monkeypatch, "sglang-ep4", "new", "changed")
    assert promotion.promote(settings, "ep4", "new", before)["changed"] is True
    assert promotion.since(settings, "ep4") is not None
    told = promotion.roll_back(settings)
    assert told == {"units": ["sglang-ep4"], "configuration": "ep4", "leaving": "ep4"}
    # The unit gets its old file, and an engine with the new fingerprint is not what is wanted.
    assert (settings.state / "ready/sglang-ep4/sglang-ep4.conf").read_text() == "as it was"
    assert read_json(settings.state / "running.json")["sglang-ep4"]["ready_fingerprint"] == "old"
    assert promotion.rolled_back(settings)["now"]["fingerprint"] == "old"
    with pytest.raises(HostError, match="Nothing served before ep4"):
        promotion.roll_back(settings)


def test_promoting_what_is_promoted_changes_nothing(settings, monkeypatch):
    serves(settings, monkeypatch, "sglang-ep8", "old", "as it was")
    first = promotion.promote(settings, "ep4", "new", promotion.prepare(settings, "ep4", "new", []))
    serves(settings, monkeypatch, "sglang-ep4", "new", "x")
    again = promotion.promote(settings, "ep4", "new", promotion.prepare(settings, "ep4", "new", []))
    assert again["changed"] is False
    assert (again["now"], again["before"]) == (first["now"], first["before"])
    assert promotion.since(settings, "ep8") is None


@pytest.mark.parametrize(("since", "kept"), [([], ["sglang-ep8"]), (["sglang-tp8"], [])])
def test_a_promotion_that_was_not_noted_keeps_what_served_before_it(settings, monkeypatch, since, kept):
    """The disk was full when it was to be noted; the same again then finds the winner serving already."""
    serves(settings, monkeypatch, "sglang-ep8", "old", "as it was")
    promotion.prepare(settings, "ep4", "new", [])
    serves(settings, monkeypatch, "sglang-ep4", "new", "x")
    # What was started in between is what served last.
    others = {unit: {"ready_fingerprint": "y", "started_at": time.time() + 1} for unit in since}
    write_json(settings.state / "running.json", read_json(settings.state / "running.json") | others)
    again = promotion.prepare(settings, "ep4", "new", [])
    assert again.get("units", []) == kept
    assert (promotion.promote(settings, "ep4", "new", again)["before"] or {}).get("units", []) == kept
    assert promotion.prepare(settings, "ep4", "new", []) == {}


def test_there_is_no_way_back_where_nothing_was_promoted(settings):
    with pytest.raises(HostError, match="Nothing was promoted"):
        promotion.roll_back(settings)


class Units:
    """One unit, which runs."""

    def state(self, unit):
        return ServiceState(unit=unit, activity="active")

    def reload(self):
        pass


@pytest.mark.parametrize(("measured", "unit"), [("new", "in service"), ("another", "as in the sweep")])
def test_what_is_promoted_is_in_service_again_after_a_sweep_that_started_it(settings, monkeypatch, measured, unit):
    serves(settings, monkeypatch, "sglang-ep4", "new", "in service")
    promotion.promote(settings, "ep4", "new", {})
    serves(settings, monkeypatch, "sglang-ep4", measured, "as in the sweep")
    file = settings.unit_file("sglang-ep4")
    file.parent.mkdir()
    file.write_text("as in the sweep")
    promotion.put_in_service(settings, Units())
    # Only where it is the same engine: another command line would be another one than runs.
    assert file.read_text() == unit


def test_a_host_that_served_nothing_goes_back_to_nothing_with_the_others_of_its_group(settings, monkeypatch):
    serves(settings, monkeypatch, "sglang-tp16", "new", "x")
    promotion.promote(settings, "tp16", "new", {})
    with pytest.raises(HostError, match="Nothing served before tp16"):
        promotion.roll_back(settings)
    assert promotion.roll_back(settings, spread=True) == {"units": [], "configuration": None, "leaving": "tp16"}
    assert promotion.rolled_back(settings)["now"] is None
