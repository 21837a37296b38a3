"""Rows that may come out of order for longer than X, through real processes: an answer within X, the final one when the
disorder is over, and no state of failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stack.breaking import QUERY, X_S, flowing

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.soak, pytest.mark.xdist_group("servers")]

DISORDER_S = 1.5 * X_S


def test_disorder_beyond_x_means_an_early_answer_and_the_final_one(tmp_path: Path) -> None:
    streams = {name: {**stream, "disorder": f"{DISORDER_S}s"} for name, stream in QUERY["streams"].items()}
    with flowing(tmp_path, {**QUERY, "name": "early", "streams": streams}) as bench:
        states = set()
        since = bench.mark()
        for _ in range(round(2 * DISORDER_S)):
            bench.breathe(1)
            states |= set(bench.deployment.states().values())
        was_steady = bench.may_be_timed
        figures = bench.check(since)
        changes = bench.deployment.changes()[since:]
        tentative = [record for record in changes if record["type"] == "tentative"]
        assert tentative and figures["tentative"] <= 10 * figures["stable"]
        if was_steady:
            assert {(record["cause"], *record["missing_inputs"]) for record in tentative} == {("early",)}
            assert states == {"STABLE"}
        stable = [record for record in changes if record["type"] == "stable"]
        late_ms = max(record["emitted_ms"] - record["ingest_ms"] for record in stable)
        # The final answer is behind by the disorder, and by how far apart corrections are.
        assert late_ms <= (DISORDER_S + 2 * X_S) * 1_000 or not was_steady
