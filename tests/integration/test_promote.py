"""The winner into service for good, and the way back."""

from __future__ import annotations

import json

import pytest
from conftest import recap, said

pytestmark = pytest.mark.slow


def fact(site, name):
    return json.loads((site.folder / f"facts.d/sglang_{name}.fact").read_text())


@pytest.mark.long
def test_the_winner_is_promoted_and_what_served_before_comes_back(site):
    assert site.play("deploy.yml", config="ep4").returncode == 0
    swept = site.play("sweep.yml", configs="ep8,pp8", concurrencies="4", interrupt=True)
    assert swept.returncode == 0, said(swept)
    assert site.serving() == ["sglang-ep4"]

    refused = site.play("playbooks/promote.yml")
    assert refused.returncode != 0
    assert "sglang-ep4 serves on here and would be stopped" in said(refused)

    check = site.play("playbooks/promote.yml", "--check", interrupt=True)
    assert check.returncode == 0, said(check)
    assert site.serving() == ["sglang-ep4"]

    # A fact that was cut off is written anew, and stops nothing.
    (site.folder / "facts.d/sglang_ep4.fact").write_text('{"configuration": "ep')
    done = site.play("playbooks/promote.yml", interrupt=True)
    assert done.returncode == 0, said(done)
    assert site.serving() == ["sglang-ep8"]
    assert site.ask("/health").status_code == 200
    assert fact(site, "ep8")["promoted"].endswith("Z")
    assert fact(site, "ep8")["peak_output_tokens_per_second"] > 0
    assert fact(site, "ep4")["promoted"] is None

    again = site.play("playbooks/promote.yml")
    assert again.returncode == 0, said(again)
    assert recap(again)["changed"] == 0

    # A sweep that measures it too leaves it in service, and its fact says so still.
    swept = site.play("sweep.yml", configs="ep8,pp8", concurrencies="4,8", interrupt=True)
    assert swept.returncode == 0, said(swept)
    assert site.serving() == ["sglang-ep8"]
    assert fact(site, "ep8")["promoted"].endswith("Z")

    back = site.play("playbooks/promote.yml", rollback=True)
    assert back.returncode == 0, said(back)
    assert site.serving() == ["sglang-ep4"]
    assert fact(site, "ep8")["promoted"] is None
    assert fact(site, "ep4")["promoted"].endswith("Z")

    further = site.play("playbooks/promote.yml", rollback=True)
    assert further.returncode != 0
    assert "Nothing served before ep4 was promoted" in said(further)
    assert site.serving() == ["sglang-ep4"]


def test_without_a_winner_it_says_what_to_do(site):
    done = site.play("playbooks/promote.yml")
    assert done.returncode != 0
    assert "has no winner for here. Sweep first (sweep.yml), or say which configuration: -e config=ep4." in said(done)


def test_a_promotion_that_fails_leaves_what_served(served):
    failed = served.play("playbooks/promote.yml", config="tp4ep2", interrupt=True)
    assert failed.returncode != 0
    assert "sglang-ep4 served before and serves again" in said(failed)
    assert served.serving() == ["sglang-ep4"]
    assert not (served.folder / "facts.d/sglang_tp4ep2.fact").exists()
