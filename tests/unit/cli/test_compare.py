"""compare: which runs, the table, and the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from boreal.model.errors import UserError
from boreal.query.spec import Mode
from embedded import run_folder
from embedded.compare import Comparison, combinations, compare, prepare_folder
from embedded.session import RunOptions, make_session

SOURCES = ("a=generate:50,5,4", "b=generate:50,5,4")
FAULTS = ("cut a at 1s for 2s", "crash main.r1 at 3.5s for 500ms")


@pytest.fixture
def compared(query: Path, tmp_path: Path) -> tuple[Path, Comparison]:
    session = make_session(query, SOURCES, RunOptions(speed="1x", faults=FAULTS, seed=1))
    chosen, notes = combinations(session, "checkpoint_redo, overlay_redo", "process/process,delay/delay")
    out = tmp_path / "out"
    prepare_folder(out)
    return out, compare(session, chosen, notes, out)


def test_all_are_the_three_modes_under_the_papers_six_policies(query: Path) -> None:
    chosen, notes = combinations(make_session(query, SOURCES), "all", "all")
    assert len({combination.name for combination in chosen}) == 18
    assert {str(combination.policy.failure) for combination in chosen} == {"process", "delay"}
    assert notes == []


def test_all_leaves_out_a_mode_that_the_query_does_not_allow_and_by_name_it_is_refused(query: Path) -> None:
    text = query.read_text().replace("output: counted", "  once: {distinct: all, on: [k]}\noutput: once")
    query.write_text(text)
    session = make_session(query, SOURCES)
    chosen, notes = combinations(session, "all", "process/process")
    assert [combination.mode for combination in chosen] == [Mode.CHECKPOINT_REDO, Mode.OVERLAY_REDO]
    assert notes[0].startswith("undo_redo is omitted: ")
    with pytest.raises(UserError) as caught:
        combinations(session, "undo_redo", "all")
    assert caught.value.field == "--modes"


@pytest.mark.parametrize(("modes", "policies", "field"), [("redo", "all", "--modes"), ("all", "process", "--policies")])
def test_what_is_no_mode_or_policy_is_refused_by_name(query: Path, modes: str, policies: str, field: str) -> None:
    with pytest.raises(UserError) as caught:
        combinations(make_session(query, SOURCES), modes, policies)
    assert caught.value.field == field


def test_each_run_has_its_folder_and_all_end_alike(compared: tuple[Path, Comparison]) -> None:
    out, comparison = compared
    assert comparison.is_stable
    parts = [out / row["dir"] for row in comparison.table]
    assert parts[0].name == "checkpoint_redo-process-process"
    for part, report in zip(parts, comparison.runs, strict=True):
        assert sorted(path.name for path in part.iterdir()) == sorted(run_folder.RUN_FILES)
        assert json.loads((part / "report.json").read_text()) == report
    assert len({(part / "stable.jsonl").read_bytes() for part in parts}) == 1
    assert json.loads((out / "compare.json").read_text()) == json.loads(comparison.to_json())


def test_the_table_says_what_the_reports_say(compared: tuple[Path, Comparison]) -> None:
    out, comparison = compared
    for row, report in zip(comparison.table, comparison.runs, strict=True):
        assert (row["mode"], row["policy"]) == (report["mode"], report["policy"])
        assert row["n_tentative"] == report["n_tentative"] > 0
        assert row["reconcile_seconds"] == max(entry["seconds"] for entry in report["reconciliations"])
        unstable = [span["to_ms"] for span in report["states"] if span["state"] != "STABLE"]
        changes = map(json.loads, (out / row["dir"] / "changes.jsonl").read_text().splitlines())
        corrected = [change["emitted_ms"] for change in changes if change["type"] == "rec_done"]
        assert corrected
        assert row["consistent_after_seconds"] == pytest.approx((max(*unstable, *corrected) - 4000) / 1000)


def test_the_page_is_of_these_runs(compared: tuple[Path, Comparison]) -> None:
    out, comparison = compared
    text = (out / "compare.html").read_text()
    drawings = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    bars, strips = drawings[:3], drawings[3:]
    assert len(strips) == len(comparison.runs)
    for chart in bars:
        assert sum("bar" in (part.get("class") or "").split() for part in chart.iter("rect")) == len(comparison.runs)
    for strip, report in zip(strips, comparison.runs, strict=True):
        kinds = [part.get("class") for part in strip.iter("rect")]
        assert kinds.count("fault") == len(FAULTS)
        assert sorted(kind.upper() for kind in kinds if kind and kind != "fault") == sorted(
            span["state"] for span in report["states"]
        )
    assert all(fault in text for fault in FAULTS)


def test_a_new_comparison_replaces_an_old_one(compared: tuple[Path, Comparison], query: Path) -> None:
    out, _ = compared
    (out / "overlay_redo-delay-delay" / "mine.txt").write_text("mine")
    prepare_folder(out)
    assert [str(path.relative_to(out)) for path in out.rglob("*")] == [
        "overlay_redo-delay-delay",
        "overlay_redo-delay-delay/mine.txt",
    ]


def test_what_never_heals_is_never_consistent(query: Path, tmp_path: Path) -> None:
    session = make_session(query, SOURCES, RunOptions(speed="1x", faults=["stop a at 1s"], seed=1))
    chosen, notes = combinations(session, "overlay_redo", "process/process")
    out = tmp_path / "<out>"
    prepare_folder(out)
    comparison = compare(session, chosen, notes, out)
    assert not comparison.is_stable
    assert comparison.table[0]["consistent_after_seconds"] is None
