"""The command line held against its contract from outside: only files, exit codes, stdout and stderr are looked at.

Inputs are small and made here, runs are seeded (virtual work, so that they repeat), and the changelog is checked by a
replay of its own that shares nothing with the program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle, groupby, product
from pathlib import Path
from typing import Any

import pytest

from boreal_cli import main
from tests.thoroughness import IS_THOROUGH, every

Query = dict[str, Any]
START = datetime(2020, 1, 1, tzinfo=UTC)
SCHEMA = {"k": "string", "n": "int", "v": "double"}
STREAMS = ("a", "b", "c")
CUT = "cut b at 500ms for 1500ms"
COUNTED = {
    "all": {"union": list(STREAMS)},
    "most": {"filter": "all", "where": "v > 20"},
    "counted": {"aggregate": "most", "window": {"tumbling": "500ms"}, "by": ["k"], "compute": {"n": "count(*)", "m": "avg(v)"}},
}


def moment(step: int) -> str:
    """The event time of a step of 10 ms."""
    return (START + timedelta(milliseconds=10 * step)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def record(stream: int, step: int) -> dict[str, Any]:
    value = None if (step + stream) % 17 == 0 else float((step * 7 + stream * 13) % 100)
    return {"at": moment(step), "k": f"k{(step * 3 + stream) % 4}", "n": step, "v": value}


def csv_line(row: dict[str, Any]) -> str:
    return ",".join("" if value is None else str(value) for value in row.values())


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three streams of 300 rows each over three seconds, as CSV."""
    folder = tmp_path_factory.mktemp("input")
    options = []
    for number, name in enumerate(STREAMS):
        lines = ["at,k,n,v", *(csv_line(record(number, step)) for step in range(300))]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
        options += ["--source", f"{name}={folder / name}.csv"]
    return options


def query_of(operators: dict[str, Any] = COUNTED, output: str = "counted", **more: Any) -> Query:
    streams = {name: {"time": "at", "schema": SCHEMA} for name in STREAMS}
    query = {"name": "q", "streams": streams, "operators": operators, "output": output}
    return {**query, "delay_threshold": "1s", "replicas": 2, **more}


def execute(folder: Path, query: Query, *arguments: str) -> int:
    """`boreal run` into folder/out; a rate at which three seconds of input take three seconds."""
    path = folder / "query.json"
    path.write_text(json.dumps(query))
    pace = () if {"--rate", "--speed"} & set(arguments) else ("--rate", "300/s")
    clock = () if "--clock" in arguments else ("--seed", "1")
    return main(["run", str(path), *arguments, *pace, *clock, "--out", str(folder / "out"), "--json"])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def replay(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the changelog leaves; fails where a record breaks the contract."""
    held: list[dict[str, Any]] = []
    stable_seq = epoch = 0
    through = ""
    for seq, change in enumerate(changes, start=1):
        kind = change["type"]
        assert change["v"] == 1 and change["seq"] == seq
        if kind == "stable":
            assert all(other["type"] == "stable" for other in held), "stable after tentative, no undo between"
            stable_seq = seq
        assert change["stable_seq"] == stable_seq
        assert change["epoch"] > epoch if kind == "undo" else change["epoch"] >= epoch
        epoch = change["epoch"]
        if kind in ("stable", "tentative"):
            held.append(change)
        elif kind == "undo":
            revoked = [other for other in held if other["seq"] > change["after_seq"]]
            assert all(other["type"] == "tentative" for other in revoked)
            held = [other for other in held if other["seq"] <= change["after_seq"]]
        elif kind == "boundary":
            datetime.fromisoformat(change["through"])
            if not change["tentative"]:
                assert change["through"] >= through
                through = change["through"]
        else:
            assert kind == "rec_done"
    assert all(change["type"] == "stable" for change in held), "tentative tuples remain"
    return [change["data"] for change in held]


def new_delays(changes: list[dict[str, Any]]) -> Iterator[float]:
    """R14: a row is new if neither a row nor a boundary had given its bucket to the client before its frame."""
    given = ""
    for _, records in groupby(changes, key=lambda change: (change["emitted_ms"], change["type"])):
        reached = given
        for change in records:
            if change["type"] == "boundary":
                reached = max(reached, change["through"])
            elif "t_max" in change:
                if change["t_max"] > given:
                    yield change["emitted_ms"] - change["ingest_ms"]
                reached = max(reached, change["t_max"])
        given = reached


def check(out: Path) -> dict[str, Any]:
    """Holds the folder of a healed run against the contract; returns its report."""
    changes = lines_of(out / "changes.jsonl")
    assert replay(changes) == lines_of(out / "stable.jsonl")
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    kinds = [change["type"] for change in changes]
    assert report["n_stable"] == kinds.count("stable")
    assert report["n_tentative"] == report["n_undone"] == kinds.count("tentative")
    delays = [round(delay, 3) for delay in new_delays(changes)]
    assert report["delay_new_ms_max"] == (pytest.approx(max(delays), abs=0.002) if delays else None)
    assert report["violations"] == sum(delay > report["x_ms"] for delay in delays)
    assert report["n_dlq"] == len(lines_of(out / "dlq.jsonl"))
    last = {(state["fragment"], state["replica"], state["shard"]): state["state"] for state in report["states"]}
    assert set(last.values()) == {"STABLE"}
    return report


@pytest.fixture(scope="module")
def faultless(tmp_path_factory: pytest.TempPathFactory, sources: list[str]) -> bytes:
    """stable.jsonl of the counting query without faults."""
    folder = tmp_path_factory.mktemp("faultless")
    assert execute(folder, query_of(), *sources) == 0
    assert check(folder / "out")["n_tentative"] == 0
    return (folder / "out" / "stable.jsonl").read_bytes()


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory, sources: list[str]) -> bytes:
    """The same on three shards."""
    folder = tmp_path_factory.mktemp("sharded")
    assert execute(folder, query_of(), *sources, "--shards", "3") == 0
    check(folder / "out")
    return (folder / "out" / "stable.jsonl").read_bytes()


def test_the_stable_output_is_what_a_loop_over_the_input_gives(faultless: bytes) -> None:
    groups: dict[tuple[int, str], list[float]] = {}
    for step in range(300):
        for stream in range(3):
            row = record(stream, step)
            if row["v"] is not None and row["v"] > 20:
                groups.setdefault((step // 50, row["k"]), []).append(row["v"])
    found = [json.loads(line) for line in faultless.splitlines()]
    wanted = [(moment(window * 50), key, len(values)) for (window, key), values in sorted(groups.items())]
    assert [(_to_millisecond(row["window_start"]), row["k"], row["n"]) for row in found] == wanted
    assert [row["m"] for row in found] == pytest.approx([sum(v) / len(v) for _, v in sorted(groups.items())])


def _to_millisecond(text: str) -> str:
    return datetime.fromisoformat(text).isoformat(timespec="milliseconds").replace("+00:00", "Z")


MODES = ("checkpoint_redo", "undo_redo", "overlay_redo")
POLICIES = ("process/process", "process/suspend", "delay/delay", "suspend/suspend")


@pytest.mark.parametrize(
    ("mode", "policy"), product(MODES, POLICIES) if IS_THOROUGH else zip(cycle(MODES), POLICIES, strict=False)
)
def test_a_cut_is_bridged_and_then_corrected(
    tmp_path: Path, sources: list[str], faultless: bytes, mode: str, policy: str
) -> None:
    assert execute(tmp_path, query_of(), *sources, "--fault", CUT, "--mode", mode, "--policy", policy) == 0
    report = check(tmp_path / "out")
    assert (tmp_path / "out" / "stable.jsonl").read_bytes() == faultless
    assert (report["mode"], report["policy"]) == (mode, policy)
    if policy == "suspend/suspend":
        assert report["n_tentative"] == 0
        return
    assert report["n_tentative"] > 0 and report["violations"] == 0 and report["reconciliations"]


THRESHOLDS = ("500ms", "1s", "3s")
LENGTHS = ("50ms", "400ms", "2s", "6s")


@pytest.mark.parametrize(
    ("threshold", "length"), product(THRESHOLDS, LENGTHS) if IS_THOROUGH else zip(cycle(THRESHOLDS), LENGTHS, strict=False)
)
def test_x_holds_for_cuts_of_any_length(
    tmp_path: Path, sources: list[str], faultless: bytes, threshold: str, length: str
) -> None:
    fault = f"cut b at 500ms for {length}"
    assert execute(tmp_path, query_of(), *sources, "--fault", fault, "--delay-threshold", threshold) == 0
    report = check(tmp_path / "out")
    assert (tmp_path / "out" / "stable.jsonl").read_bytes() == faultless
    assert report["violations"] == 0 and report["delay_new_ms_max"] <= report["x_ms"]
    if length == "50ms":
        assert report["n_tentative"] == 0


@pytest.mark.parametrize(
    "faults",
    every(
        2,
        [
            ["cut a at 0s for 1s", CUT],
            ["cut b at 2900ms for 2s"],
            ["cut b at 30s for 1s"],
            ["cut b to r0 at 500ms for 1s", "cut main.r1 at 1s for 1s"],
            ["crash main.r0 at 500ms for 1s losing checkpoint", CUT],
            ["crash main.r0 at 500ms for 600ms", "crash main.r1 at 800ms for 600ms"],
            ["freeze main.r0 at 500ms for 1500ms"],
            ["slow b by 300ms at 500ms for 1s", "slow main.r1 by 400ms at 700ms for 1s"],
        ],
    ),
    ids=" and ".join,
)
@pytest.mark.parametrize("shards", every(2, ["3", "1"]))
def test_faults_of_every_kind_leave_the_stable_output_alone(
    tmp_path: Path, sources: list[str], faultless: bytes, sharded: bytes, faults: list[str], shards: str
) -> None:
    options = [part for fault in faults for part in ("--fault", fault)]
    assert execute(tmp_path, query_of(), *sources, *options, "--shards", shards) == 0
    check(tmp_path / "out")
    assert (tmp_path / "out" / "stable.jsonl").read_bytes() == (faultless if shards == "1" else sharded)


def test_shards_change_the_order_of_equal_times_only(faultless: bytes, sharded: bytes) -> None:
    assert sorted(sharded.splitlines()) == sorted(faultless.splitlines())
    starts = [_to_millisecond(json.loads(line)["window_start"]) for line in sharded.splitlines()]
    assert starts == sorted(starts)


EVERY_KIND = {
    "all": {"union": ["a", "b"]},
    "shaped": {"map": "all", "select": {"k": "k", "n": "n", "half": "v / 2.0"}},
    "joined": {"join": ["shaped", "c"], "on": ["k", "n"], "within": "200ms", "how": "left"},
    "uniq": {"distinct": "joined", "on": ["n"], "window": {"tumbling": "1s"}},
    "sliding": {"aggregate": "uniq", "window": {"sliding": "1s", "every": "250ms"}, "by": ["k"], "compute": {"s": "sum(half)"}},
    "worst": {"top": "sliding", "k": 2, "order_by": "s desc", "window": {"tumbling": "1s"}, "by": []},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "chain": {
        "x": {"operators": ["all", "shaped"]},
        "y": {"operators": ["joined", "uniq"]},
        "z": {"operators": ["sliding", "worst"]},
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_operators_in_chains_of_fragments(tmp_path: Path, sources: list[str], layout: str) -> None:
    query = query_of(EVERY_KIND, "worst", **({"fragments": LAYOUTS[layout]} if LAYOUTS[layout] else {}))
    outputs = []
    first = next(iter(LAYOUTS[layout]), "main")
    for number, faults in enumerate(([], ["--fault", CUT, "--fault", f"crash {first}.r0 at 1s for 1s"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert execute(folder, query, *sources, *faults) == 0
        check(folder / "out")
        outputs.append((folder / "out" / "stable.jsonl").read_bytes())
    assert outputs[0] == outputs[1] and outputs[0]


def test_measured_work_never_shows_the_client_a_boundary_before_time(tmp_path: Path, sources: list[str]) -> None:
    """The order of the first messages depends on measured time: hence several runs, without a seed."""
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert execute(folder, query_of(), *sources, "--clock", "skip", "--rate", "10000/s") == 0
        check(folder / "out")


def test_a_seeded_run_repeats_to_the_byte(tmp_path: Path, sources: list[str]) -> None:
    contents = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert execute(folder, query_of(), *sources, "--fault", CUT) == 0
        contents.append({path.name: path.read_bytes() for path in (folder / "out").iterdir()})
    assert contents[0] == contents[1]


def test_dead_letters_have_their_line_and_nothing_else_is_lost(tmp_path: Path) -> None:
    rows = [csv_line(record(0, step)) for step in range(100)]
    rows[10] = f"{moment(10)},k1"
    rows[20] = f"{moment(20)},k1,5,much"
    rows[30] = ",k1,5,5"
    rows[40], rows[50] = f"{moment(38)},k1,-1,5", f"{moment(20)},k1,5,5"
    (tmp_path / "a.csv").write_text("\n".join(["at,k,n,v", *rows]) + "\n")
    query = query_of({"kept": {"filter": "a", "where": "n IS NOT NULL"}}, "kept")
    query["streams"] = {"a": {"time": "at", "schema": SCHEMA, "disorder": "20ms"}}
    assert execute(tmp_path, query, "--source", f"a={tmp_path / 'a.csv'}") == 0
    check(tmp_path / "out")
    letters = lines_of(tmp_path / "out" / "dlq.jsonl")
    assert [(letter["source"], letter["line"], letter["record"]) for letter in letters] == [
        ("a", place + 2, rows[place]) for place in (10, 20, 30, 50)
    ]
    assert all(letter["reason"] for letter in letters)
    kept = [row["n"] for row in lines_of(tmp_path / "out" / "stable.jsonl")]
    assert kept == [*range(10), *range(11, 20), *range(21, 30), *range(31, 39), -1, 39, *range(41, 50), *range(51, 100)]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_integer_times_in_every_unit(tmp_path: Path, unit: str, factor: int) -> None:
    moments = [int(START.timestamp()) + step for step in range(5)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"at": at * factor, "n": at, "extra": [1]}) + "\n" for at in moments))
    query = query_of({"kept": {"filter": "a", "where": "n > 0"}}, "kept")
    query["streams"] = {"a": {"time": "at", "time_unit": unit, "schema": {"n": "int"}}}
    assert execute(tmp_path, query, "--source", f"a={tmp_path / 'a.jsonl'}") == 0
    check(tmp_path / "out")
    assert lines_of(tmp_path / "out" / "stable.jsonl") == [
        {"time": f"2020-01-01T00:00:0{step}Z", "n": at} for step, at in enumerate(moments)
    ]


def test_a_stream_that_stops_ends_with_status_1(tmp_path: Path, sources: list[str]) -> None:
    assert execute(tmp_path, query_of(), *sources, "--fault", "stop b at 1s") == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["n_tentative"] > 0 and report["states"][-1]["state"] != "STABLE"


def test_stdout_is_the_report_and_an_existing_folder_is_refused(
    tmp_path: Path, sources: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(tmp_path, query_of(), *sources) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "out" / "report.json").read_text())
    assert execute(tmp_path, query_of(), *sources) == 2
    assert json.loads(capsys.readouterr().err)["error"]["field"] == "--out"
    assert execute(tmp_path, query_of(), *sources, "--force") == 0


def changed(place: str, value: Any) -> Query:
    """The counting query with another value at the dotted place."""
    query: Query = json.loads(json.dumps(query_of()))
    *path, last = place.split(".")
    entry = query
    for part in path:
        entry = entry[part]
    entry[last] = value
    return query


@pytest.mark.parametrize(
    ("query", "arguments", "field"),
    [
        (changed("operators.most.where", "w > 1"), [], "operators.most.where"),
        (changed("operators.most.where", "k > 1"), [], "operators.most.where"),
        (changed("operators.most.filter", "counted"), [], "operators.counted.aggregate"),
        (changed("operators.counted.window", {"tumbling": "0s"}), [], "operators.counted.window.tumbling"),
        (changed("operators.a", {"filter": "all", "where": "v > 1"}), [], "operators.a"),
        (changed("delay_threshold", "3 parsecs"), [], "delay_threshold"),
        (changed("streams.b.time", "nowhere"), [], "--source"),
        (changed("engine", "spark"), [], "engine"),
        (query_of(), ["--delay-threshold", "10ms"], "--delay-threshold"),
        (query_of(), ["--fault", "cut nowhere at 1s for 1s"], "--fault"),
        (query_of(), ["--fault", "cut b at 1s"], "--fault"),
        (query_of(), ["--source", "b=nowhere.csv"], "--source"),
        (query_of(), ["--rate", "1/s", "--speed", "1x"], "--speed"),
        (query_of(), ["--nonsense"], "--nonsense"),
    ],
    ids=lambda value: None if isinstance(value, dict) else " ".join(value) if isinstance(value, list) else value,
)
def test_what_is_wrong_is_named_on_stderr_and_nothing_is_written(
    tmp_path: Path, sources: list[str], capsys: pytest.CaptureFixture[str], query: Query, arguments: list[str], field: str
) -> None:
    assert execute(tmp_path, query, *sources, *arguments) == 2
    printed = capsys.readouterr()
    error = json.loads(printed.err)["error"]
    assert printed.out == "" and set(error) == {"field", "value", "problem", "fix"}
    assert error["field"] == field and error["problem"] and error["fix"]
    assert not (tmp_path / "out").exists()


def test_compare_and_verify_and_simulate_speak_json(
    tmp_path: Path, sources: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "query.json"
    path.write_text(json.dumps(query_of()))
    options = [str(path), *sources, "--rate", "300/s", "--seed", "1", "--fault", CUT, "--json"]
    out = tmp_path / "compared"
    assert main(["compare", *options, "--modes", "all", "--policies", "process/process", "--out", str(out)]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert [run["mode"] for run in compared["runs"]] == ["checkpoint_redo", "undo_redo", "overlay_redo"]
    assert len(compared["table"]) == 3 and json.loads((out / "compare.json").read_text()) == compared
    assert (out / "compare.html").is_file()
    assert main(["verify", *options]) == 0
    capsys.readouterr()
    assert main(["simulate", "--seeds", "1", "--json"]) == 0
    campaign = json.loads(capsys.readouterr().out)
    assert {"seeds", "first", "violations", "faults", "coverage", "seconds"} <= set(campaign)
    assert main(["simulate", "--seeds", "1", "--mutant", "nonsense", "--json"]) == 2
