"""backfill, and verify of a query that runs: what the command line takes, and the files that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from boreal.model.errors import UserError
from boreal.model.schema import Schema
from boreal_cli import main
from boreal_cli.history import is_deployed, parse_time
from boreal_cli.result_files import check, writing

FILE, NAME = {"--source": None, "--seed": None}, {"--from": None}


@pytest.mark.parametrize("text", ["2013-01-01", "2013-01-01T00:00", "2013-01-01T00:00:00Z", "2013-01-01T02:00:00+02:00"])
def test_times_without_a_zone_are_utc(text: str) -> None:
    assert parse_time("--from", text) == 1_356_998_400_000_000


def test_what_is_no_time_is_refused_by_the_options_name() -> None:
    with pytest.raises(UserError) as refused:
        parse_time("--to", "yesterday")
    assert (refused.value.field, refused.value.value) == ("--to", "yesterday")


def test_verify_means_a_query_that_runs_where_no_file_is_meant(query: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(query.parent)
    assert is_deployed(Path("departures"), FILE, NAME)
    assert not is_deployed(query, FILE, NAME)
    assert not is_deployed(Path("missing.yaml"), FILE, NAME)
    assert not is_deployed(Path("folder/departures"), FILE, NAME)
    assert not is_deployed(Path("departures"), {**FILE, "--source": ["a=a.csv"]}, NAME)
    Path("departures").write_text("name: departures")
    assert not is_deployed(Path("departures"), FILE, NAME)


@pytest.mark.parametrize(("which", "option"), [("departures", "--fault=cut a at 1s for 1s"), ("small.yaml", "--from=2013")])
def test_options_of_the_other_kind_are_refused(
    which: str, option: str, query: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(query.parent)
    assert main(["verify", which, option, "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["field"] == option.partition("=")[0]


@pytest.mark.parametrize("command", ["backfill", "verify"])
def test_without_a_stack_the_command_says_so(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "departures", "--data", str(tmp_path), "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["field"] == "--data"


# Files

SCHEMA = Schema.of({"k": "string", "at": "timestamp", "v": "double"}, windowed=True)
ROWS = [
    {"time": 9, "window_start": 0, "window_end": 10, "k": "a,b", "at": 1_500_000, "v": 0.5},
    {"time": 19, "window_start": 10, "window_end": 20, "k": None, "at": None, "v": None},
]


def written(out: Path) -> None:
    with writing(out, SCHEMA) as write:
        for row in ROWS:
            write(pa.RecordBatch.from_pylist([row], schema=SCHEMA.arrow))
        assert not out.exists(), "a part of the results has the file's name"


def test_a_parquet_file_has_the_columns_of_a_stable_row(tmp_path: Path) -> None:
    written(tmp_path / "rows.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    assert found.column_names == ["window_start", "window_end", "k", "at", "v"]
    assert found.schema.field("window_end").type == pa.timestamp("us", tz="UTC")
    assert found.column("k").to_pylist() == ["a,b", None]
    assert found.column("window_end").cast(pa.int64()).to_pylist() == [10, 20]


def test_a_csv_file_has_times_as_texts(tmp_path: Path) -> None:
    written(tmp_path / "rows.csv")
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert lines == [
        '"window_start","window_end","k","at","v"',
        '"1970-01-01T00:00:00.000000Z","1970-01-01T00:00:00.000010Z","a,b","1970-01-01T00:00:01.500000Z",0.5',
        '"1970-01-01T00:00:00.000010Z","1970-01-01T00:00:00.000020Z",,,',
    ]


def test_json_lines_are_those_of_stable_jsonl(tmp_path: Path) -> None:
    written(tmp_path / "rows.jsonl")
    found: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [list(row) for row in found] == 2 * [["window_start", "window_end", "k", "at", "v"]]
    assert found[0]["at"] == "1970-01-01T00:00:01.500000Z"
    assert found[1]["v"] is None


def test_what_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="in the midst"), writing(tmp_path / "rows.csv", SCHEMA) as write:
        write(SCHEMA.empty())
        raise ValueError("in the midst")
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.touch()
    check(there, force=True)
    for out in (there, tmp_path / "rows.xlsx", tmp_path / "nowhere" / "rows.csv"):
        with pytest.raises(UserError) as refused:
            check(out, force=False)
        assert refused.value.field == "--out"
