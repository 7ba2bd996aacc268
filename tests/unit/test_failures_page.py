"""docs/failures.md names every kind of failure that the code can give, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [
    *(ROOT / "benchmark/engine/lifecycle").glob("*.py"),
    ROOT / "benchmark/engine/nodes.py",
    *(ROOT / "benchmark/host").glob("*.py"),
]
GIVEN = re.compile(
    r'(?:plain|Failure|Verdict|StuckError|_fail)\(\s*(?:state,\s*)?"([a-z_0-9]+)"|"kind": "([a-z_0-9]+)"'
    r'|"(killed)" if|else "(crash)"'
)


def test_the_page_has_each_kind_of_failure():
    given = {kind for source in SOURCES for found in GIVEN.findall(source.read_text()) for kind in found if kind}
    page = (ROOT / "docs/failures.md").read_text().split("## How long")[0]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    named = {kind for row in rows for kind in re.findall(r"`([a-z_0-9]+)`", row.split("|")[1])}
    assert len(given) > 30
    assert named - {"point_failed"} == given - {"point_failed"}
