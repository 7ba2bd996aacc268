"""The report as text: Markdown for a pull request, CSV for a spreadsheet, a table for a terminal. Pure."""

from __future__ import annotations

import csv as csv_module
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ..campaign.record import Distribution, Point, Record
from . import text
from .compare import Comparison, Difference
from .reported import MARK
from .summary import Row, joules_per_token, mapping, number, rows, sequence

SIMULATED = "SIMULATED: no GPU was measured. Every number here comes from the simulated engine's model."


# Markdown


def markdown(records: list[Record], decision: Mapping[str, Any], campaign: Mapping[str, Any] | None = None) -> str:
    """The decision, the table, experiments and failures, as GitHub-flavoured Markdown.

    Names and texts of records are escaped, so that none can add markup, a link or a mention.
    """
    campaign = campaign or {}
    found = rows(records, decision)
    name = decision.get("name") or campaign.get("name") or "campaign"
    parts = [f"## Shardsweep: {escape(name)}"]
    if decision.get("simulated") or any(r.simulated for r in records):
        parts.append(f"> **{SIMULATED}**")
    parts.append(_markdown_winner(decision, found))
    parts.append(_markdown_about(records, found))
    if found:
        parts.append(_markdown_table(found))
    parts += [
        _markdown_winners(decision),
        _markdown_pareto(decision, several=len({row.host for row in found}) > 1),
        _markdown_experiments(decision),
        _markdown_failures(found),
        _markdown_skipped(decision),
        _markdown_more(decision),
        _markdown_notes(decision),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(item: Any) -> str:
    """One line of plain text that Markdown and HTML leave as it is."""
    flat = text.clean(item).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")
    flat = re.sub(r"([\\`*\[\]|~#])", r"\\\1", flat)
    # Inside a word GitHub leaves an underscore alone; only the others can start emphasis.
    flat = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", flat)
    return re.sub(r"(https?|ftp)://", r"\1&#58;//", flat)


def code(item: Any) -> str:
    """A name in code style where it holds nothing that could end the code, else escaped."""
    flat = text.clean(item)
    return f"`{flat}`" if re.fullmatch(r"[\w.:+/ =,→-]+", flat) else escape(flat)


def _markdown_winner(decision: Mapping[str, Any], found: list[Row]) -> str:
    winner = mapping(decision.get("winner"))
    if winner:
        name, stands = code(winner.get("configuration", "")), text.standing(winner)
        return f"**{name}** {stands}. {escape(winner.get('sentence') or '')}".strip()
    if not found:
        return "No records yet."
    if not any(row.peak for row in found):
        return "**No winner**: no configuration has a valid point."
    return "**No winner was decided.**"


def _markdown_about(records: list[Record], found: list[Row]) -> str:
    if not records:
        return ""
    hosts = sorted({f"{r.host.hardware or r.host.name}" for r in records})
    engines = sorted({f"{r.engine.name} {r.engine.version}" for r in records})
    models = sorted({r.model.name for r in records})
    measured = sum(row.outcome == "measured" for row in found)
    return (
        f"{escape(text.joined(models))} on {escape(text.joined(hosts))}, {escape(text.joined(engines))}. "
        f"{text.plural(len(found), 'configuration')}, {measured} measured."
    )


def _markdown_table(found: list[Row]) -> str:
    head = ["configuration", "outcome", "differs by", "C=1 tok/s", "peak tok/s", "@C", "TTFT p50", "TPOT p50", "why"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|---|---:|---:|---:|---:|---:|---|"]
    for row in found:
        ran = row.outcome == "measured"
        cells = [
            code(row.label),
            row.outcome,
            ", ".join(code(text.change(*c)) for c in row.changes) or text.UNKNOWN,
            text.rate(row.single_stream),
            peak_with_interval(row),
            str(row.peak.concurrency) if row.peak else text.UNKNOWN,
            text.seconds(row.at_peak("ttft", "p50")),
            text.seconds(row.at_peak("tpot", "p50")),
            escape(row.reason) if ran else escape(f"{row.reason} {row.advice}".strip()),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _markdown_winners(decision: Mapping[str, Any]) -> str:
    """By host, where hosts cannot be compared, and by objective, where more than one was measured."""
    parts = []
    for title, key, shown in (("By host", "winners_by_host", text.clean), ("By objective", "winners", text.objective)):
        found = [(name, mapping(entry)) for name, entry in mapping(decision.get(key)).items() if entry]
        lines = [
            f"- {escape(shown(name))}: {code(won['configuration'])}. {escape(won.get('sentence') or '')}"
            for name, won in found
            if won.get("configuration")
        ]
        parts += [f"### {title}\n\n" + "\n".join(lines)] if len(lines) > 1 else []
    return "\n\n".join(parts)


def _markdown_pareto(decision: Mapping[str, Any], *, several: bool) -> str:
    entries = [mapping(entry) for entry in sequence(decision.get("pareto"))]
    if len(entries) < 2:
        return ""
    names = list(dict.fromkeys(name for entry in entries for name in mapping(entry.get("objectives"))))
    lines = [
        "| " + " | ".join(["configuration", *(escape(text.objective(name)) for name in names)]) + " |",
        "|---|" + "---:|" * len(names),
    ]
    for entry in entries:
        label = f"{entry.get('configuration', '')} @ {entry.get('host', '')}" if several else entry["configuration"]
        values = [text.objective_value(name, mapping(entry.get("objectives")).get(name)) for name in names]
        lines.append("| " + " | ".join([code(label), *values]) + " |")
    return "### None beats these in everything at once\n\n" + "\n".join(lines)


def peak_with_interval(row: Row) -> str:
    """`1,538 (1,510 to 1,566)`; the number alone where the decision gives no interval."""
    interval = row.peak_interval
    shown = text.rate(row.peak_value)
    return f"{shown} ({text.span(*interval)})" if interval else shown


def _markdown_experiments(decision: Mapping[str, Any]) -> str:
    lines = []
    for entry in map(mapping, sequence(decision.get("experiments"))):
        about = f"{code(entry.get('configuration', ''))} against {code(entry.get('against', ''))}"
        hypothesis = f" Hypothesis: {escape(entry['hypothesis'])}" if entry.get("hypothesis") else ""
        verdict = escape(entry.get("verdict") or "no verdict")
        lines.append(f"- {about}: **{verdict}**. {escape(entry.get('sentence') or '')}{hypothesis}")
    return "### Experiments\n\n" + "\n".join(lines) if lines else ""


def _markdown_failures(found: list[Row]) -> str:
    lines = [
        f"- {code(row.label)} ({row.outcome}, {escape(row.shown.failure.stage)}): "
        f"{escape(row.shown.failure.sentence)} {escape(row.shown.failure.advice)}".rstrip()
        for row in found
        if row.shown.failure
    ]
    return "### What did not run\n\n" + "\n".join(lines) if lines else ""


def _markdown_skipped(decision: Mapping[str, Any]) -> str:
    lines = [
        f"- {code(row.get('configuration', ''))}: {escape(row.get('reason') or '')}"
        for row in map(mapping, sequence(decision.get("skipped")))
    ]
    return "### What was not measured\n\n" + "\n".join(lines) if lines else ""


def _markdown_more(decision: Mapping[str, Any]) -> str:
    lines = [
        f"- {code(row.get('configuration', ''))}, {text.plural(int(number(row.get('starts')) or 1), 'more start')}: "
        f"{escape(row.get('why') or '')}"
        for row in map(mapping, sequence(decision.get("more_starts")))
    ]
    return "### What would settle it\n\n" + "\n".join(lines) if lines else ""


def _markdown_notes(decision: Mapping[str, Any]) -> str:
    lines = [f"- {escape(note)}" for note in sequence(decision.get("notes"))]
    return "### Notes\n\n" + "\n".join(lines) if lines else ""


# CSV

_Read = Callable[[Record, Point], Any]


def _percentiles(name: str) -> list[tuple[str, _Read]]:
    def read(quantile: str) -> _Read:
        def value(_: Record, point: Point) -> Any:
            sample: Distribution | None = getattr(point, f"{name}_seconds")
            return None if sample is None else getattr(sample, quantile)

        return value

    return [(f"{name}_{q}_seconds", read(q)) for q in ("mean", "p50", "p90", "p95", "p99", "min", "max")]


COLUMNS: list[tuple[str, _Read]] = [
    ("configuration", lambda r, p: r.configuration.name),
    ("host", lambda r, p: r.host.name),
    ("nodes", lambda r, p: " ".join(r.nodes) or None),
    ("hardware", lambda r, p: r.host.hardware),
    ("engine", lambda r, p: r.engine.name),
    ("engine_version", lambda r, p: r.engine.version),
    ("model", lambda r, p: r.model.name),
    ("fingerprint", lambda r, p: r.fingerprint),
    ("start_number", lambda r, p: r.start_number),
    ("engine_started_at_utc", lambda r, p: p.engine_started_at),
    ("record_created_at_utc", lambda r, p: r.created_at),
    ("workload", lambda r, p: p.workload),
    ("concurrency_requests", lambda r, p: p.concurrency),
    ("repeat", lambda r, p: p.repeat),
    ("started_at_utc", lambda r, p: p.started_at),
    ("duration_seconds", lambda r, p: p.duration_seconds),
    ("window_seconds", lambda r, p: p.window_seconds),
    ("valid", lambda r, p: "true" if p.valid else "false"),
    ("flags", lambda r, p: "; ".join(f"{f.severity}: {f.id}" for f in p.flags)),
    ("requests_completed", lambda r, p: p.requests_completed),
    ("requests_failed", lambda r, p: p.requests_failed),
    ("prompt_tokens", lambda r, p: p.prompt_tokens),
    ("output_tokens", lambda r, p: p.output_tokens),
    ("output_tokens_per_second", lambda r, p: p.output_tokens_per_second),
    ("requests_per_second", lambda r, p: p.requests_per_second),
    ("output_tokens_per_second_per_user", lambda r, p: p.output_tokens_per_second_per_user),
    ("goodput_requests_per_second", lambda r, p: p.goodput_requests_per_second),
    *_percentiles("ttft"),
    *_percentiles("itl"),
    *_percentiles("tpot"),
    *_percentiles("e2e"),
    ("energy_joules_per_output_token", lambda r, p: joules_per_token(p)),
    ("weights_bytes_per_gpu", lambda r, p: r.start.weights_bytes if r.start else None),
    ("kv_tokens", lambda r, p: r.kv_tokens),
    ("raw_file", lambda r, p: p.raw),
]
"""Header -> how to read it. Units stand in the header."""


def csv(records: Iterable[Record]) -> str:
    """Tidy: a header, then one row a point, valid or not. What did not run has no point, hence no row.

    A text that a spreadsheet would run as a formula gets a leading apostrophe.
    """
    out = io.StringIO()
    writer = csv_module.writer(out, lineterminator="\n")
    writer.writerow([name for name, _ in COLUMNS])
    for record in records:
        for point in record.points:
            writer.writerow([_cell(read(record, point)) for _, read in COLUMNS])
    return out.getvalue()


def _cell(item: Any) -> Any:
    if item is None or (isinstance(item, float) and number(item) is None):
        return ""
    if isinstance(item, float):
        return f"{item:.10g}"
    if not isinstance(item, str):
        return item
    flat = item.replace("\x00", "").replace("\r", " ").replace("\n", " ")
    return "'" + flat if flat[:1] in ("=", "+", "-", "@", "\t") else flat


# Terminal

_COLOURS = {"measured": "green", "failed": "red", "rejected": "yellow", "skipped": "dim"}


def terminal_table(records: list[Record], decision: Mapping[str, Any], width: int = 100) -> Table:
    """The end of a sweep: one line block a configuration, never wider than `width` characters.

    Configurations are shown by single stream, peak and what the winner is chosen by. The last column says why a
    configuration did not run and what to try, or what the decision says of it.
    """
    found = rows(records, decision)
    simulated = decision.get("simulated") or any(r.simulated for r in records)
    table = Table(box=box.SIMPLE_HEAD, width=width, pad_edge=False, padding=(0, 1), show_edge=False)
    if simulated:
        table.caption = Text("Simulated: no GPU was measured.", style="bold yellow")
    longest = max((len(row.label) for row in found), default=0)
    table.add_column("configuration", width=max(13, min(24, longest + 2)), overflow="fold")
    table.add_column("outcome", width=8, no_wrap=True)
    table.add_column("C=1\ntok/s", width=7, justify="right", no_wrap=True)
    table.add_column("peak\ntok/s", width=8, justify="right", no_wrap=True)
    table.add_column("@C", width=4, justify="right", no_wrap=True)
    by = str(decision.get("objective") or "")
    table.add_column(_column_of(by) or "TTFT p50\nat peak", width=9, justify="right", no_wrap=True)
    table.add_column("why", ratio=1, overflow="fold")
    winner = mapping(decision.get("winner"))
    for row in found:
        won = row.configuration == winner.get("configuration") and row.host == winner.get("host", row.host)
        mark = "* " if won else "  "
        table.add_row(
            Text(mark + text.clean(row.label), style="bold" if won else ""),
            Text(row.outcome, style=_COLOURS.get(row.outcome, "")),
            Text(text.rate(row.single_stream)),
            Text(text.rate(row.peak_value)),
            Text(str(row.peak.concurrency) if row.peak else text.UNKNOWN),
            Text(
                text.objective_value(by, mapping(row.ranking.get("objectives")).get(by))
                if _column_of(by)
                else text.seconds(row.at_peak("ttft", "p50"))
            ),
            Text(_why(row)),
        )
    return table


_COLUMNS = {
    "ttft": "TTFT\nlong",
    "prefill": "prefill\ntok/s",
    "goodput": "goodput\nreq/s",
    "tokens_per_joule": "tokens\na joule",
}


def _column_of(by: str) -> str:
    """The head of the objective's own column; empty where the table has one for it anyway."""
    return f"C={by.partition('@')[2]}\ntok/s" if by.startswith("throughput@") else _COLUMNS.get(by, "")


def _why(row: Row) -> str:
    told = text.clean(row.reason)
    return told if row.outcome == "measured" else text.clean(f"{told} {row.advice}")


# Comparison


def comparison_text(comparison: Comparison, width: int = 100) -> str:
    """A comparison as plain text of at most `width` columns: what changed, differences, what was refused, notes."""
    before, after = comparison.names
    lines = [f"{text.clean(after)} against {text.clean(before)}"]
    if comparison.changed:
        lines += ["", "Changed"]
        lines += [
            f"  {text.clean(what)}: {text.clean(old)} -> {text.clean(new)}" for what, old, new in comparison.changed
        ]
    if comparison.differences:
        lines += ["", "Differences"]
        lines += [_difference_line(d) for d in comparison.differences]
    if comparison.beside:
        lines += ["", f"Reported beside measured ({MARK}), output tokens/s"]
        lines += [_beside_line(told, row) for told, row in comparison.beside]
    if comparison.refused:
        lines += ["", "Not compared"]
        whats: dict[str, list[str]] = {}
        for what, why in comparison.refused:
            whats.setdefault(why, []).append("everything" if what == "*" else text.clean(what))
        lines += [f"  {text.joined(names, 12)}: {why}" for why, names in whats.items()]
    if comparison.notes:
        lines += ["", *comparison.notes]
    return "\n".join(part for line in lines for part in _wrapped(line, width)) + "\n"


def _difference_line(d: Difference) -> str:
    show = text.seconds if "seconds" in d.metric else text.rate
    interval = f" ({text.percent(d.low)} to {text.percent(d.high)})" if d.low is not None else ""
    metric = d.metric.removesuffix(", seconds")
    return (
        f"  {text.clean(d.configuration)}, C={d.concurrency}, {metric}: {show(d.before)} -> {show(d.after)}, "
        f"{text.percent(d.ratio)}{interval}: {d.verdict}"
    )


def _beside_line(told: Mapping[str, Any], row: Row | None) -> str:
    own = (row.single_stream, row.peak_value) if row else (None, None)
    shown = [
        f"{name} {text.rate(theirs)} reported, {text.rate(mine)} here"
        for name, theirs, mine in zip(("C=1", "peak"), (told["single_stream"], told["peak"]), own, strict=True)
        if theirs is not None or mine is not None
    ]
    return f"  {told['name']}: {'; '.join(shown) or 'no figure on either side'}"


def _wrapped(line: str, width: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]
