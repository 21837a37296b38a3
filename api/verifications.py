"""Verifications as jobs: a query with faults and without them, whose stable results must be the same, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from api.comparisons import InputRequest, OnProgress, Short, check_input, one_row
from boreal.model.errors import UserError
from embedded.session import RunSession
from embedded.verify import verify

EXAMPLE: dict[str, Any] = {
    "id": "still-exact",
    "query": "departures",
    "sources": {"jfk": "generate:100,30"},
    "speed": "10x",
    "faults": ["cut jfk at 1s for 1s"],
    "mode": "overlay_redo",
}
RUNS = 2


class VerificationRequest(InputRequest):
    """The same input with the faults and without them."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    mode: Short | None = Field(default=None, description="The reconciliation mode; null: that of the query.")
    policy: Short | None = Field(default=None, description="The policy, FAILURE/STABILIZATION; null: that of the query.")
    delay_threshold: Short | None = Field(default=None, description="X; null: that of the query.")


def check(request: VerificationRequest, spec: Mapping[str, Any]) -> None:
    """UserError for the first thing that would keep a verification from running, by the field of the request."""
    check_input(request, spec)
    _session(request, spec, one_row(request))


def run(request: VerificationRequest, spec: Mapping[str, Any], scratch: Path, on_progress: OnProgress) -> dict[str, Any]:
    """Run a verification: what `boreal verify --json` says, without the reports. scratch: a folder for files that go again."""
    begun = 0

    def watch_for(run: str) -> None:
        nonlocal begun
        on_progress(begun, RUNS)
        begun += 1

    verdict = verify(_session(request, spec, request.sources), watch_for, scratch)
    on_progress(RUNS, RUNS)
    said: dict[str, Any] = json.loads(verdict.to_json())
    del said["runs"]
    return {"query": spec["name"], "faults": request.faults, **said}


def _session(request: VerificationRequest, spec: Mapping[str, Any], sources: Mapping[str, str]) -> RunSession:
    try:
        return request.session(
            spec, sources, mode=request.mode, policy=request.policy, delay_threshold=request.delay_threshold
        )
    except UserError as error:
        raise replace(error, field="delay_threshold" if error.field == "delay_thresholds" else error.field) from None
