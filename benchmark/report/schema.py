"""The published JSON schema of a campaign: campaign.json and the records below it."""

from __future__ import annotations

from typing import Any

from ..campaign import record

_NUMBER = {"type": ["number", "null"]}
_TEXT = {"type": ["string", "null"]}


def campaign_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a campaign with its decision; `$defs/Record` is that of a record.json.

    A decision may hold more than what is written here; what is here keeps its meaning within a schema version.
    """
    described = record.schema()
    interval = {"type": ["array", "object", "null"], "description": "Low and high, in the unit of the number."}
    winner = {
        "type": ["object", "null"],
        "properties": {"configuration": _TEXT, "host": _TEXT, "objective": _TEXT, "sentence": _TEXT},
    }
    ranked = {
        "configuration": {"type": "string"},
        "host": _TEXT,
        "outcome": {"enum": ["measured", "failed", "rejected", "skipped"]},
        "peak": _NUMBER | {"description": "Output tokens a second."},
        "peak_concurrency": {"type": ["integer", "null"]},
        "single_stream": _NUMBER | {"description": "Output tokens a second at concurrency 1."},
        "interval": interval,
        "sentence": _TEXT,
    }
    effect = {
        "type": "object",
        "properties": {"ratio": _NUMBER, "low": _NUMBER, "high": _NUMBER},
        "description": "Measured over baseline.",
    }
    experiment = {
        "configuration": {"type": "string"},
        "against": _TEXT,
        "against_host": _TEXT | {"description": "Where what it is held against was measured."},
        "hypothesis": _TEXT,
        "changes": {"type": "array", "items": {"type": "array", "minItems": 3, "maxItems": 3}},
        "ignored": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Flags that the engine does not read.",
        },
        "effect": {"type": "object", "additionalProperties": effect},
        "verdict": _TEXT,
        "sentence": _TEXT,
    }
    decision = {
        "name": _TEXT,
        "simulated": {"type": "boolean"},
        "objective": _TEXT | {"description": "What the winner is chosen by."},
        "looks": _NUMBER | {"description": "How often finalists are compared at most."},
        "winner": winner,
        "winners": {"type": "object", "additionalProperties": winner},
        "ranking": {"type": "array", "items": {"type": "object", "properties": ranked}},
        "experiments": {"type": "array", "items": {"type": "object", "properties": experiment}},
        "winners_by_host": {"type": "object", "additionalProperties": winner},
        "pareto": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "configuration": {"type": "string"},
                    "host": _TEXT,
                    "objectives": {"type": "object", "additionalProperties": _NUMBER},
                },
            },
        },
        "drift": {
            "type": "array",
            "items": {"type": "object", "properties": {"per_hour": _NUMBER, "low": _NUMBER, "high": _NUMBER}},
            "description": "Log change an hour of a baseline, with its interval of 95 %.",
        },
        "noise": {
            "type": "object",
            "additionalProperties": {"type": "object", "properties": {"deviation": _NUMBER, "degrees": _NUMBER}},
            "description": "Of each objective's logarithm between engine starts.",
        },
        "more_starts": {"type": "array", "items": {"type": "object", "properties": {"why": _TEXT}}},
        "skipped": {
            "type": "array",
            "items": {"type": "object", "properties": {"reason": _TEXT, "chance": _NUMBER}},
            "description": "What was not tried, or not to the end of its ladder.",
        },
        "notes": {"type": "array", "items": {"type": "string"}},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Shardsweep campaign",
        "description": "Times are seconds, sizes bytes, rates per second; dates are ISO 8601 in UTC.",
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "decision": {"type": "object", "properties": decision},
            "records": {"type": "array", "items": {"$ref": "#/$defs/Record"}},
        },
        "$defs": described["$defs"],
    }
