"""Records of an earlier Shardsweep, without the fields that came since, still make a page."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

from benchmark.campaign.judged import written
from benchmark.campaign.store import Campaign

ROOT = Path(__file__).parents[3]
OLD = ROOT / "docs/evidence/h200-one-gpu/campaigns/mini-moe-short"


def test_records_of_the_first_real_campaign_are_judged_and_drawn(tmp_path):
    shutil.copytree(OLD, tmp_path / OLD.name)
    text = next((tmp_path / OLD.name).glob("h200/frac50/*/record.json")).read_text()
    assert not any(f'"{field}"' in text for field in ("earlier_starts", "after_ladder", "engine_started_at"))
    campaign = Campaign(tmp_path, OLD.name)
    records = {record.configuration.name: record for record in campaign.records()}
    # From the page that tells of that campaign: frac50 reached 10,112 tokens a second at 256.
    assert round(records["frac50"].peak().output_tokens_per_second) == 10112
    assert records["fail_kv"].failure.kind == "out_of_memory_kv"
    written(campaign)
    page = (campaign.folder / "report.html").read_text()
    assert "10,112" in page
    rows = list(csv.DictReader((campaign.folder / "results.csv").open(newline="")))
    assert {row["configuration"] for row in rows} >= {"mini", "frac50", "lpm", "stream8"}
