"""report.html: one file that opens from disk, and the files beside it.

Everything that comes from records or a decision is untrusted: the template escapes it, JSON is put where no tag can
end it, and a content security policy lets only this page's own scripts run and nothing leave it.
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from .. import __version__
from ..campaign.record import Record
from . import figures, method, reported, schema, tables, text, topology, views
from .summary import Row, mapping, rows, sequence

_HERE = Path(__file__).parent
SECTIONS = [
    ("results", "Results"),
    ("pictures", "Pictures"),
    ("machines", "Machine"),
    ("experiments", "Experiments"),
    ("failures", "Failures"),
    ("method", "Method"),
    ("files", "Files"),
]


def write_report(
    folder: Path | str, campaign: Mapping[str, Any], records: list[Record], decision: Mapping[str, Any]
) -> dict[str, Path]:
    """Write report.html, report.md, results.csv and campaign.schema.json into the campaign's folder.

    Each file is replaced whole or not at all. Raw files are linked where they lie below `folder`.

    Returns:
        Name of each file -> its path.

    Raises:
        OSError: the folder cannot be made or written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.html": build_page(campaign, records, decision, folder),
        "report.md": tables.markdown(records, decision, campaign),
        "results.csv": tables.csv(records),
        "campaign.schema.json": json.dumps(schema.campaign_schema(), indent=1) + "\n",
    }
    return {name: _replace(folder / name, body) for name, body in texts.items()}


def _replace(path: Path, body: str) -> Path:
    """Write beside the file and rename, so that a reader never sees half of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(body)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def build_page(
    campaign: Mapping[str, Any],
    records: list[Record],
    decision: Mapping[str, Any],
    folder: Path | None = None,
) -> str:
    """The whole page as text. `folder` is where the page will lie: raw files below it become relative links."""
    found = rows(records, decision)
    pictures = figures.draw(found, views.drifts(decision))
    style, script, plotly = (_asset(name) for name in ("page.css", "report.js", "plotly-basic.min.js"))
    drawn = {p.id: p.figure for p in pictures if p.figure}
    won = winning_row(found, decision)
    page = _environment().get_template("page.html.j2")
    return page.render(
        name=text.clean(decision.get("name") or campaign.get("name") or "campaign"),
        simulated=bool(decision.get("simulated")) or any(r.simulated for r in records),
        policy=policy(script, plotly),
        style=Markup(style),
        script=Markup(script),
        plotly=Markup(plotly),
        figures=Markup(safe_json(drawn)),
        sections=SECTIONS,
        headline=headline(found, decision, won),
        lead=lead(decision, won),
        about=about(records, found),
        winner=views.winner_view(won, decision) if won else None,
        standing=views.standing(decision, found),
        table=views.table_view(found, won),
        pictures=[p for p in pictures if p.figure],
        not_drawn=[p for p in pictures if not p.figure],
        hosts=topology.hosts(found),
        meanings=topology.MEANINGS,
        experiments=views.experiments(decision, found),
        notes=[str(note) for note in sequence(decision.get("notes"))],
        reported=views.reported_views(reported.beside(records), found),
        failures=views.failures(found),
        method=method.method(records, found, campaign),
        points=method.points(found),
        files=method.files(found, folder),
        tools_version=__version__,
        written=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


@functools.cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(_HERE / "templates")
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


@functools.cache
def _asset(name: str) -> str:
    return (_HERE / "static" / name).read_text(encoding="utf-8")


def policy(*scripts: str) -> str:
    """A content security policy that runs exactly these scripts and loads nothing."""
    hashes = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{h}'" for h in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def safe_json(item: Any) -> str:
    """JSON that may stand inside a script element: no character of it can end the element or start a comment."""
    body = msgspec.json.encode(item).decode()
    return body.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def winning_row(found: list[Row], decision: Mapping[str, Any]) -> Row | None:
    """The row that the decision names, if it is there and ran."""
    winner = mapping(decision.get("winner"))
    for row in found:
        if row.configuration == winner.get("configuration") and winner.get("host") in (row.host, None):
            return row
    return None


def headline(found: list[Row], decision: Mapping[str, Any], won: Row | None) -> str:
    """The answer in one line."""
    stands = text.standing(mapping(decision.get("winner")))
    if won is not None and won.peak_value is not None and won.peak is not None:
        return f"{won.label} {stands}: {text.rate(won.peak_value)} tok/s at {text.plural(won.peak.concurrency, 'user')}"
    if won is not None:
        return f"{won.label} {stands}"
    if not found:
        return "Nothing measured yet"
    if not any(row.peak for row in found):
        return "No winner: no configuration has a valid point"
    return "No winner was decided"


def lead(decision: Mapping[str, Any], won: Row | None) -> str:
    """What the decision says of its winner."""
    return str(mapping(decision.get("winner")).get("sentence") or "") if won else ""


def about(records: list[Record], found: list[Row]) -> list[tuple[str, str]]:
    """What was swept: model, hosts, engine, workload, when."""
    if not records:
        return []
    dates = sorted({r.created_at for r in records} | {r.updated_at for r in records})
    hosts = host_lines(records)
    work = list(dict.fromkeys(workload_line(r.workload) for r in records))
    taken = sum(len(r.points) for r in records)
    ran = sum(row.outcome == "measured" for row in found)
    # What was rejected before the host was touched has no revision.
    revised = {r.model.name for r in records if r.model.revision}
    models = dict.fromkeys(
        f"{r.model.name} ({r.model.revision[:12]})" if r.model.revision else r.model.name
        for r in records
        if r.model.revision or r.model.name not in revised
    )
    return [
        ("Model", text.joined(list(models))),
        ("Hosts" if len({r.host.name for r in records}) > 1 else "Host", "; ".join(hosts[:4])),
        ("Engine", text.joined(sorted({f"{r.engine.name} {r.engine.version}" for r in records}))),
        ("Driver", text.joined(sorted({r.host.driver for r in records if r.host.driver})) or text.UNKNOWN),
        ("Workload", "; ".join(work[:3]) or text.UNKNOWN),
        ("Measured", period(dates[0], dates[-1])),
        (
            "Configurations",
            f"{len(found)}, {ran} measured, {text.plural(taken, 'point')}",
        ),
    ]


def host_lines(records: list[Record]) -> list[str]:
    """`gpu1 and gpu2: 8x RTX PRO 6000`, hosts of the same hardware together."""
    told: dict[str, str] = {}
    for record in records:
        # A configuration that was rejected before any host was touched tells no hardware.
        told[record.host.name] = hardware(record) or told.get(record.host.name, "")
        # The further nodes of one engine have the same GPUs, or it would not have been started.
        told |= {name: told[record.host.name] for name in record.nodes if not told.get(name)}
    kinds: dict[str, list[str]] = {}
    for name, kind in told.items():
        kinds.setdefault(kind, []).append(text.clean(name))
    return [f"{text.joined(names, 4)}: {kind or 'GPUs not told'}" for kind, names in kinds.items()]


def hardware(record: Record) -> str:
    """`8x RTX PRO 6000`, from the inventory's words or else from the GPUs; empty where neither is told."""
    if record.host.hardware:
        return record.host.hardware
    names = [str(mapping(gpu).get("name") or "GPU") for gpu in record.host.gpus]
    return f"{len(names)}x {names[0]}" if names else ""


def workload_line(workload: Mapping[str, Any]) -> str:
    """`chat: 1,024 tokens in, 256 out`."""
    if not workload:
        return text.UNKNOWN
    name = text.clean(workload.get("name") or "workload")
    prompt, output = (text.count(workload.get(key)) for key in ("prompt_tokens", "output_tokens"))
    return f"{name}: {prompt} tokens in, {output} out"


def period(first: str, last: str) -> str:
    """`2026-11-29 12:00 to 15:00 UTC`, the day twice only where there are two."""
    first, last = (stamp[:16].replace("T", " ") for stamp in (first, last))
    return f"{first} to {last[11:] if first[:10] == last[:10] else last} UTC"
