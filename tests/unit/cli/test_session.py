"""Options are checked before anything runs, each refusal names its option, and a seeded run repeats to the byte."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from boreal.model.errors import UserError
from boreal.model.frames import LogId
from boreal.query.spec import Mode, Policy
from embedded import run_folder
from embedded.file_checkpoints import FileCheckpointStore
from embedded.file_log import FileLogStore
from embedded.session import RunOptions, RunSession, make_session

SOURCES = ("a=generate:50,5,4", "b=generate:50,5,4")


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("--source", {"sources": ["a=generate:50,5,4"]}),
        ("--source", {"sources": [*SOURCES, "c=x.csv"]}),
        ("--source", {"sources": [*SOURCES, "a=x.csv"]}),
        ("--source", {"sources": ["a"]}),
        ("--source", {"sources": ["a=no/such.csv", SOURCES[1]]}),
        ("--speed", {"rate": "10/s", "speed": "2x"}),
        ("--speed", {"speed": "2"}),
        ("--speed", {"speed": "0x"}),
        ("--speed", {"speed": "-1x"}),
        ("--speed", {"speed": "1" + "0" * 400 + "x"}),
        ("--speed", {"speed": "100000000000000x"}),
        ("--rate", {"rate": "10"}),
        ("--rate", {"rate": "0/s"}),
        ("--rate", {"rate": "fast"}),
        ("--fault", {"faults": ["cut z at 1s for 1s"]}),
        ("--fault", {"faults": ["cut a"]}),
        ("--fault", {"faults": ["cut unused at 1s for 1s"]}),
        ("--mode", {"mode": "redo"}),
        ("--policy", {"policy": "process"}),
        ("--delay-threshold", {"delay_threshold": "3"}),
        ("--delay-threshold", {"delay_threshold": "40ms"}),
        ("--replicas", {"replicas": 0}),
        ("--shards", {"shards": -1}),
        ("--engine", {"engine": "flink"}),
        ("engine", {"engine": "spark"}),
        ("--clock", {"clock": "wall"}),
        ("--seed", {"seed": -1}),
    ],
)
def test_what_cannot_run_is_refused_by_name(query: Path, field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        make_session(query, changes.pop("sources", SOURCES), RunOptions(**changes))
    assert caught.value.field == field
    assert caught.value.problem and caught.value.fix


def test_an_engine_is_blamed_where_it_is_named(query: Path) -> None:
    spec = yaml.safe_load(query.read_text())
    fragments = {"all_of_it": {"operators": list(spec["operators"]), "engine": "spark"}}
    query.write_text(yaml.safe_dump({**spec, "engine": "native", "fragments": fragments}))
    with pytest.raises(UserError) as caught:
        make_session(query, SOURCES, RunOptions())
    assert caught.value.field == "fragments.all_of_it.engine"


@pytest.mark.parametrize("faults", [("cut a at 1s for 2s",), ("cut b at 1s for 2s", "crash main.r1 at 2s losing checkpoint")])
def test_logs_and_checkpoints_in_files_change_no_result(query: Path, tmp_path: Path, faults: tuple[str, ...]) -> None:
    crash = "crash main.r0 at 3s500ms for 500ms"
    session = make_session(query, SOURCES, RunOptions(speed="1x", seed=1, faults=(*faults, crash)))
    data = tmp_path / "data"
    for part, where in (("memory", None), ("files", data)):
        run_folder.prepare(tmp_path / part)
        session.run(tmp_path / part, data=where)
    for name in run_folder.RUN_FILES:
        assert (tmp_path / "files" / name).read_bytes() == (tmp_path / "memory" / name).read_bytes()
    with closing(FileLogStore(data / "logs")) as logs:
        assert {log.stream for log in logs.ids()} > {"a", "b", "counted"}
        assert logs.open(LogId("counted", "r0", 0)).next_stable_id > 0
    assert FileCheckpointStore(data / "checkpoints").latest("main.r0.0") is not None


def test_logs_of_another_run_are_not_written_to(query: Path, tmp_path: Path) -> None:
    session = make_session(query, SOURCES, RunOptions(speed="1x", seed=1))
    used, file = tmp_path / "used", tmp_path / "file"
    (used / "logs").mkdir(parents=True)
    file.touch()
    for data, problem in ((used, "already holds logs"), (file, "is not a directory"), (file / "in", "cannot be written")):
        with pytest.raises(UserError, match=problem) as refused, run_folder.stores(data):
            pass
        assert (refused.value.field, refused.value.value) == ("--data", str(data))
    with pytest.raises(UserError, match="already holds logs"):
        session.run(tmp_path, data=used)


def test_a_query_for_spark_runs_natively_only_when_told_to(query: Path) -> None:
    query.write_text(query.read_text() + "engine: spark\n")
    with pytest.raises(UserError, match="--engine native"):
        make_session(query, SOURCES)
    assert make_session(query, SOURCES, RunOptions(engine="native")).plan.fragments[0].engines == ("native", "native")


def test_a_fault_of_the_file_is_not_blamed_on_an_option(query: Path) -> None:
    query.write_text(query.read_text().replace("replicas: 2", "replicas: 0"))
    with pytest.raises(UserError) as caught:
        make_session(query, SOURCES, RunOptions(mode="undo_redo"))
    assert caught.value.field == "replicas"


def test_a_stream_that_does_not_reach_the_output_needs_no_source(query: Path) -> None:
    assert list(make_session(query, [SOURCES[1], SOURCES[0], "unused=no/such.csv"]).rows) == ["a", "b"]


def test_under_speed_the_bucket_is_given_in_run_time(query: Path) -> None:
    session = make_session(query, SOURCES, RunOptions(speed="60x"))
    assert session.plan.bucket_us == 3_000_000
    assert session.plan.boundary_interval_us == 100_000
    assert session.planned(Mode.UNDO_REDO).bucket_us == 3_000_000


def test_at_a_rate_below_the_datas_own_the_bucket_shrinks_until_x_can_be_kept(query: Path) -> None:
    sources = ["a=generate:5000,2", "b=generate:5000,2"]  # 500 tuples a bucket
    assert make_session(query, sources, RunOptions(rate="10000/s")).plan.bucket_us == 50_000
    session = make_session(query, sources, RunOptions(rate="1000/s"))
    assert session.plan.bucket_us == 25_000
    assert any("bucket is 25ms" in note for note in session.plan.notes)
    varied = session.planned(Mode.OVERLAY_REDO)
    assert (varied.bucket_us, varied.notes) == (session.plan.bucket_us, session.plan.notes)


def test_rows_of_one_time_that_take_longer_than_x_are_noted(query: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("time,k,v\n" + "2026-01-01,1,20\n" * 50)
    session = make_session(query, [f"a={path}", SOURCES[1]], RunOptions(rate="10/s"))
    assert session.plan.bucket_us == 50_000
    assert any("rows with the same event time take" in note for note in session.plan.notes)


def test_planned_changes_mode_and_policy_and_keeps_all_else(query: Path) -> None:
    session = make_session(query, SOURCES, RunOptions(delay_threshold="2s", replicas=3, policy="delay/suspend"))
    varied = session.planned(Mode.OVERLAY_REDO, Policy.parse("process/delay", ""))
    assert (varied.mode, str(varied.policy)) == (Mode.OVERLAY_REDO, "process/delay")
    assert (varied.delay_threshold_us, len(varied.fragments[0].replicas)) == (2_000_000, 3)
    assert str(session.planned(Mode.UNDO_REDO).policy) == "delay/suspend"


def test_a_seeded_run_repeats_to_the_byte(query: Path, tmp_path: Path) -> None:
    def files(session: RunSession, name: str) -> dict[str, bytes]:
        out = tmp_path / name
        run_folder.prepare(out)
        assert session.run(out).is_stable
        return {path.name: path.read_bytes() for path in out.iterdir()}

    session = make_session(query, SOURCES, RunOptions(speed="1x", faults=["cut a at 1s for 2s"], seed=7))
    first = files(session, "first")
    assert sorted(first) == sorted(run_folder.RUN_FILES)
    assert first == files(session, "second")
    assert b'"type":"undo"' in first["changes.jsonl"]


def test_the_real_clock_takes_the_time_that_the_run_takes(query: Path, tmp_path: Path) -> None:
    session = make_session(query, ["a=generate:50,0.3", "b=generate:50,0.3"], RunOptions(speed="1x", clock="real", seed=1))
    run_folder.prepare(tmp_path / "out")
    outcome = session.run(tmp_path / "out")
    assert outcome.is_stable
    assert any("a run in real time" in note for note in outcome.report["notes"])
    assert max(span["to_ms"] for span in outcome.report["states"]) >= 250
