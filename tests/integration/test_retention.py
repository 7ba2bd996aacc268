"""What is old is taken away, and nothing else: raw requests, rotated logs, logs of units that are gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

from conftest import recap, said

DAY = 86400


def put(path: Path, days: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    at = time.time() - days * DAY
    os.utime(path, (at, at))
    return path


def test_what_is_old_is_taken_away_and_nothing_else(site):
    record, logs, units = site.state / "records/ep4/abc", site.state / "log", site.state / "units"
    put(units / "sglang-ep4.conf", 200)
    gone = [
        put(record / "requests-chat-c001.jsonl.zst", 91),
        put(logs / "sglang-ep4.log.2.gz", 91),
        # As logrotate names them with `dateext`, the default of Enterprise Linux.
        put(logs / "sglang-ep4.log-20200101.gz", 91),
        # Of a unit that is gone from the catalogue.
        put(logs / "sglang-ep9.log", 91),
    ]
    kept = [
        put(record / "requests-chat-c064.jsonl.zst", 89),
        # The figures of a measurement stay for good.
        put(record / "record.json", 400),
        put(logs / "sglang-ep4.log.1.gz", 89),
        put(logs / "sglang-ep4.log-20200103", 89),
        # An engine that serves for months may have said nothing for as long.
        put(logs / "sglang-ep4.log", 200),
        put(site.folder / "campaigns/x/requests-chat-c001.jsonl.zst", 400),
    ]
    shown = site.play("playbooks/retention.yml", "--check")
    assert shown.returncode == 0, said(shown)
    assert recap(shown)["changed"] == 1
    assert all(path.exists() for path in gone + kept)

    done = site.play("playbooks/retention.yml")
    assert done.returncode == 0, said(done)
    assert [path for path in gone if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []
    assert recap(site.play("playbooks/retention.yml"))["changed"] == 0


def test_how_long_is_the_sites_to_say(site):
    requests = put(site.state / "records/ep4/abc/requests-chat-c001.jsonl.zst", 10)
    log = put(site.state / "log/sglang-ep4.log.1.gz", 10)
    campaigns = [put(site.folder / f"campaigns/x/requests-chat-c{days:03}.jsonl.zst", days) for days in (400, 300)]
    site.variables |= {
        "shardsweep_keep_requests_days": 7,
        "shardsweep_keep_logs_days": 30,
        "shardsweep_keep_campaign_requests_days": 365,
    }
    done = site.play("playbooks/retention.yml")
    assert done.returncode == 0, said(done)
    assert [path.exists() for path in (requests, log, *campaigns)] == [False, True, False, True]
