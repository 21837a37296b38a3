"""Examples of answers, by the model of the answer, for the OpenAPI document: of one query, and one failure."""

from __future__ import annotations

from typing import Any

from api.models import EXAMPLE_SPEC
from api.plans import plan_answer
from boreal.query.spec import load_query
from deployment.layout import make_layout

_NAME = EXAMPLE_SPEC["name"]
_QUERY = load_query(EXAMPLE_SPEC)
_FAILURE = "20260102T140211123Z"
_AT_MS = 1_767_362_531_123.0
"""When the failure was detected."""
_AS_OF_MS = _AT_MS + 60_000
_POLICY = {"failure": "process", "stabilization": "process"}

_ANSWER: dict[str, Any] = {
    "name": _NAME,
    "revision": 3,
    "paused": False,
    "delay_threshold": "3s",
    "x_ms": 3_000.0,
    "reconcile": "overlay_redo",
    "policy": _POLICY,
    "replicas": 2,
    "engine": "native",
    "spec": EXAMPLE_SPEC,
    "version": 1,
    "since": None,
    "evolution": None,
    "notes": [],
    "status": None,
}
_STATUS: dict[str, Any] = {
    "name": _NAME,
    "state": "UP_FAILURE",
    "x_ms": 3_000.0,
    "alpha_x_ms": 2_620.0,
    "delay_ms": {"p50": 310.0, "p99": 2_700.0, "max": 2_704.0},
    "violations": 0,
    "inputs": [
        {"name": "jfk", "state": "failed", "last_boundary": "2013-01-02T10:10:00.000000Z", "last_ingest_age_ms": 5_200.0}
    ],
    "replicas": [{"fragment": "main", "replica": "r0", "shard": 0, "engine": "native", "state": "UP_FAILURE"}],
    "tentative": {"outstanding": 8, "since": "2026-01-02T14:02:13.823000Z", "cause": "main.r0.0-1"},
    "counts": {"stable": 4_120, "tentative": 8, "undone": 0},
    "as_of_ms": _AS_OF_MS,
    "stale": False,
}
_SUMMARY: dict[str, Any] = {
    "id": _FAILURE,
    "query": _NAME,
    "state": "over",
    "detected_ms": _AT_MS,
    "ended_ms": _AT_MS + 8_005,
    "duration_ms": 8_155.0,
    "x_ms": 3_000.0,
    "reconcile": "overlay_redo",
    "policy": _POLICY,
    "missing": ["jfk"],
    "silent": [],
    "rows_tentative": 8,
    "rows_undone": 8,
    "late_rows": 0,
    "because": None,
}
_EVENT: dict[str, Any] = {
    "id": 118,
    "at_ms": _AT_MS,
    "kind": "detected",
    "query": _NAME,
    "by": None,
    "failure": _FAILURE,
    "facts": {"instance": "main.r0.0", "state": "UP_FAILURE", "missing": ["jfk"], "since_ms": _AT_MS - 150},
}
_PARTS = [
    {"name": "source", "ms": 200.0, "within": "hold"},
    {"name": "transport", "ms": 12.0, "within": "hold"},
    {"name": "hold", "ms": 2_620.0, "within": None},
    {"name": "engine", "ms": 10.0, "within": None},
    {"name": "egress", "ms": 70.0, "within": None},
    {"name": "reserve", "ms": 300.0, "within": None},
]
_INSTANCE = {"fragment": "main", "replica": "r0", "shard": 0, "state": "UP_FAILURE"}
_WAIT = {
    **_INSTANCE,
    "bucket": {"from": "2013-01-02T10:10:00.000000Z", "to": "2013-01-02T10:10:00.100000Z"},
    "for": [{"name": "jfk/0", "silent_for_ms": 1_200.0, "failed": True}],
    "waited_ms": 1_200.0,
    "is_tentative": False,
    "tentative_in_ms": 1_420.0,
}
_JOB: dict[str, Any] = {
    "id": "which-mode",
    "query": _NAME,
    "state": "running",
    "progress": {"done": 5, "total": 18},
    "by": "ours (operator)",
    "created_ms": _AS_OF_MS,
    "started_ms": _AS_OF_MS + 40,
    "ended_ms": None,
    "problem": None,
}

EXAMPLES: dict[str, dict[str, Any]] = {
    "QueryAnswer": _ANSWER,
    "QueryList": {"queries": [_ANSWER], "next": None, "as_of_ms": _AS_OF_MS, "stale": False},
    "QueryStatus": _STATUS,
    "Accepted": {"name": _NAME, "revision": 4, "paused": True},
    "Overview": {
        "queries": [
            {
                "name": _NAME,
                "revision": 3,
                "paused": False,
                "state": "UP_FAILURE",
                "delay_threshold": "3s",
                "x_ms": 3_000.0,
                "p99_ms": 2_700.0,
                "violations": 0,
                "tentative": 8,
                "inputs": [{"name": "jfk", "state": "failed", "missing": True}],
            }
        ],
        "total": 1,
        "as_of_ms": _AS_OF_MS,
        "stale": False,
    },
    "PlanAnswer": plan_answer(_QUERY, make_layout(_QUERY, ("main",))),
    "ExplainAnswer": {
        "name": _NAME,
        "state": "UP_FAILURE",
        "x_ms": 3_000.0,
        "parts": _PARTS,
        "waits": [_WAIT],
        "tentative": {"outstanding": 0, "since": None, "cause": None},
        "instances": [{**_INSTANCE, "hold_ms": 2_620.0, "parts": _PARTS, "waits": [_WAIT]}],
    },
    "FailureList": {"failures": [_SUMMARY], "next": None},
    "FailureAnswer": {
        **_SUMMARY,
        "begun_ms": _AT_MS - 150,
        "phases": [
            {"name": "detected", "from_ms": _AT_MS - 150, "to_ms": _AT_MS, "ms": 150.0},
            {"name": "held", "from_ms": _AT_MS, "to_ms": _AT_MS + 2_700, "ms": 2_700.0},
            {"name": "tentative", "from_ms": _AT_MS + 2_700, "to_ms": _AT_MS + 8_000, "ms": 5_300.0},
            {"name": "redo", "from_ms": _AT_MS + 8_000, "to_ms": _AT_MS + 8_005, "ms": 5.0},
        ],
        "clients": {
            "tentative_from_ms": _AT_MS + 2_700,
            "undone_ms": _AT_MS + 8_004,
            "sites": [{"site": "main", "rows_undone": 8}],
        },
        "instances": [
            {
                "instance": "main.r0.0",
                "state": "UP_FAILURE",
                "missing": ["jfk"],
                "detected_ms": _AT_MS,
                "healed_ms": _AT_MS + 8_000,
                "reconciled_ms": _AT_MS + 8_005,
                "redo_s": 0.005,
            }
        ],
        "switches": 0,
        "faults": [],
        "events": [_EVENT],
    },
    "ReconciliationList": {
        "reconciliations": [
            {
                "id": 124,
                "failure": _FAILURE,
                "fragment": "main",
                "replica": "r0",
                "shard": 0,
                "mode": "overlay_redo",
                "started_ms": _AT_MS + 8_000,
                "ended_ms": _AT_MS + 8_005,
                "seconds": 0.005,
            }
        ],
        "next": None,
    },
    "WhatIf": {
        "query": _NAME,
        "x_ms": 3_000.0,
        "since_ms": _AS_OF_MS - 86_400_000,
        "is_bound": True,
        "steps": [
            {"x_ms": 0.0, "failures": 1, "rows_tentative_at_most": 20},
            {"x_ms": 9_200.0, "failures": 0, "rows_tentative_at_most": 0},
        ],
    },
    "EventList": {"events": [_EVENT], "next": None},
    "WorkerList": {
        "workers": [
            {
                "site": "a",
                "name": "w1",
                "host": "node-7",
                "machine": "2f0c",
                "program": "0.1.0",
                "roles": ["node.departures.r0", "source.departures.jfk"],
                "problem": None,
            }
        ]
    },
    "ComparisonAnswer": {**_JOB, "request": {"query": _NAME, "sources": {"jfk": "generate:100,60"}}, "result": None},
    "AppendAnswer": {"accepted": 2, "refused": 1, "reasons": [{"row": 1, "reason": "column dep_delay: 'x' is not a double"}]},
    "ChaosAnswer": {
        "id": "5f0c9a1e",
        "fault": f"cut {_NAME}.jfk for 5s",
        "targets": [f"source.{_NAME}.jfk"],
        "ends_at_ms": _AT_MS + 5_000,
    },
    "SessionAnswer": {
        "name": "ours",
        "may": {"viewer": True, "operator": True, "admin": False, "chaos": False},
        "shows_rows": True,
    },
}
