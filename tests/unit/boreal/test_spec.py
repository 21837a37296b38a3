"""The query file: what it means, that it round-trips, and that each refusal names the field and the fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from boreal.model.durations import format_duration
from boreal.model.errors import UserError
from boreal.model.schema import Schema
from boreal.query.columns import Path as RecordPath
from boreal.query.columns import path_text
from boreal.query.spec import (
    Aggregate,
    Distinct,
    Filter,
    Hold,
    Intervals,
    Join,
    Map,
    Mode,
    Policy,
    Query,
    Top,
    Union,
    Window,
    json_schema,
    load_query,
)

DEPARTURES = """
name: departures
streams:
  ewr:
    topic: flights.ewr
    time: departed_at
    schema: &flight {carrier: string, origin: string, dest: string, tailnum: string, dep_delay: double}
    key: [carrier]
    boundary: data
    disorder: 0s
  jfk: {time: departed_at, schema: *flight}
  lga: {time: departed_at, schema: *flight, boundary: clock, disorder: 5s}
  weather: {time: time, time_unit: s, schema: {time: timestamp, origin: string, wind: double}, boundary: producer}
operators:
  all:        {union: [ewr, jfk, lga]}
  late:       {filter: all, where: "dep_delay > 15"}
  shaped:     {map: late, select: {carrier: carrier, hours: "dep_delay / 60.0"}}
  by_carrier:
    aggregate: late
    window: {tumbling: 10m}
    by: [carrier]
    compute: {flights: count(*), mean_delay: avg(dep_delay)}
  sliding:    {aggregate: late, window: {sliding: 1h, every: 10m}, by: [carrier], compute: {n: count(*)}}
  joined:     {join: [late, weather], on: [origin], within: 30m, how: inner}
  uniq:       {distinct: late, on: [tailnum], window: {tumbling: 1h}}
  worst:      {top: late, k: 5, order_by: "dep_delay desc", window: {tumbling: 1h}, by: []}
output: by_carrier
delay_threshold: 3s
reconcile: checkpoint_redo
policy: {failure: process, stabilization: delay}
replicas: 2
shards: 1
engine: native
fragments:
  merge: {operators: [all, late], replicas: 2}
  count: {operators: [by_carrier], engine: spark}
tuning: {bucket: 100ms, boundary_interval: 50ms, heartbeat: 100ms, alpha_x: auto, memory: 256MB, retention: 24h}
"""


def small(**changes: Any) -> dict[str, Any]:
    """A query that is accepted, with some of its fields replaced."""
    return {
        "name": "small",
        "streams": {
            "ewr": {"time": "at", "schema": {"carrier": "string", "delay": "double"}},
            "jfk": {"time": "at", "schema": {"carrier": "string", "delay": "double"}},
        },
        "operators": {
            "all": {"union": ["ewr", "jfk"]},
            "late": {"filter": "all", "where": "delay > 15"},
        },
        "output": "late",
        **changes,
    }


def with_operator(**spec: Any) -> dict[str, Any]:
    """The small query, with one more operator, `extra`."""
    query = small()
    query["operators"]["extra"] = spec
    return query


def refusal(query: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        load_query(query)
    return caught.value


def test_the_file_of_the_contract() -> None:
    query = load_query(DEPARTURES)

    assert query.name == "departures"
    assert query.streams["jfk"].columns == query.streams["ewr"].columns
    assert query.streams["lga"].disorder == 5_000_000
    assert {name: type(spec) for name, spec in query.operators.items()} == {
        "all": Union,
        "late": Filter,
        "shaped": Map,
        "by_carrier": Aggregate,
        "sliding": Aggregate,
        "joined": Join,
        "uniq": Distinct,
        "worst": Top,
    }
    assert {name: spec.kind for name, spec in query.operators.items()}["worst"] == "top"
    assert query.operators["all"].inputs == ("ewr", "jfk", "lga")
    assert query.operators["joined"].inputs == ("late", "weather")
    assert query.operators["late"].inputs == ("all",)
    sliding = query.operators["sliding"]
    assert isinstance(sliding, Aggregate)
    assert (sliding.window.size_us, sliding.window.every_us) == (3_600_000_000, 600_000_000)
    assert query.policy == Policy(failure=Hold.PROCESS, stabilization=Hold.DELAY)
    assert query.delay_threshold == 3_000_000
    assert query.tuning.alpha_x is None
    assert query.tuning.memory == 256_000_000
    assert query.fragments is not None
    assert query.fragments["count"].engine == "spark"
    assert query.reaching == ("all", "late", "by_carrier")


def test_defaults() -> None:
    query = load_query(small())

    assert query.delay_threshold == 3_000_000
    assert query.reconcile is Mode.CHECKPOINT_REDO
    assert str(query.policy) == "process/process"
    assert (query.replicas, query.shards, query.engine, query.fragments) == (1, 1, None, None)
    assert query.streams["ewr"].boundary == "data"
    assert query.streams["ewr"].disorder == 0
    tuning = query.tuning
    assert (tuning.bucket, tuning.boundary_interval, tuning.heartbeat) == (None, None, None)
    assert query.intervals == Intervals(100_000, 100_000, 100_000)
    assert (tuning.memory, tuning.retention) == (256_000_000, 86_400_000_000)
    assert (tuning.alpha_x, tuning.stable_lag_max, tuning.checkpoint_interval) == (None, None, None)


def test_a_window_is_tumbling_or_sliding() -> None:
    assert Window.model_validate({"tumbling": "10m"}).every_us == 600_000_000


@pytest.mark.parametrize("query", [DEPARTURES, small(), small(tuning={"alpha_x": "2s", "stable_lag_max": "1m"})])
def test_dump_is_the_file_again(query: Any) -> None:
    loaded = load_query(query)

    assert load_query(loaded.dump()) == loaded
    assert load_query(json.dumps(loaded.dump())) == loaded


def test_json_yaml_files_and_mappings_give_the_same_query(tmp_path: Path) -> None:
    query = load_query(small())
    as_json = tmp_path / "query.json"
    as_json.write_text(json.dumps(small(), indent="\t"))

    assert load_query(as_json) == load_query(str(as_json)) == query
    assert load_query("{name: small, streams: {ewr: {time: at, schema: {a: int}}}, output: ewr}").output == "ewr"


def test_a_spec_is_frozen() -> None:
    with pytest.raises(ValidationError):
        load_query(small()).replicas = 3


def test_changed_is_judged_again() -> None:
    query = load_query(small())

    assert query.changed(delay_threshold="1s", policy="suspend/delay").delay_threshold == 1_000_000
    with pytest.raises(UserError, match="41ms"):
        query.changed(delay_threshold="40ms")


def test_the_time_column_is_no_attribute() -> None:
    streams = {"ewr": {"time": "time", "schema": {"time": "timestamp", "carrier": "string"}}}
    query = load_query(small(streams=streams, operators={}, output="ewr"))

    assert query.streams["ewr"].attributes == Schema.of({"carrier": "string"})


def test_only_true_and_false_are_booleans_in_yaml() -> None:
    text = "name: small\nstreams:\n  yes: {time: at, schema: {no: int, off: string}}\noutput: yes\n"

    assert list(load_query(text).streams["yes"].columns) == ["no", "off"]


def test_policy_on_one_line() -> None:
    assert Policy.parse("suspend/delay", "--policy") == Policy(failure=Hold.SUSPEND, stabilization=Hold.DELAY)
    for text in ("process", "process/later", "process/process/process"):
        with pytest.raises(UserError) as caught:
            Policy.parse(text, "--policy")
        assert caught.value.field == "--policy"
        assert "suspend, delay, process" in caught.value.fix


def test_the_schema_knows_all_fields_of_the_file() -> None:
    schema = json_schema()

    assert set(schema["properties"]) == set(Query.model_fields)
    assert "schema" in schema["$defs"]["Stream"]["properties"]
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("id", ("id",)),
        ("user.id", ("user", "id")),
        ("items[0].price", ("items", 0, "price")),
        ("grid[1][20]", ("grid", 1, 20)),
        ("user['first.name'].x", ("user", "first.name", "x")),
        ("['a b'].@type", ("a b", "@type")),
    ],
)
def test_columns_by_path(text: str, path: RecordPath) -> None:
    schema = {"b": {"type": "int", "path": text}, "a.b": "double"}
    query = load_query(small(streams={"ewr": {"time": "at", "schema": schema}}, operators={}, output="ewr"))
    assert query.streams["ewr"].attributes == Schema.of({"b": "int", "a.b": "double"})
    assert query.streams["ewr"].paths == {"b": path}
    assert path_text(path) == text
    assert query.dump()["streams"]["ewr"]["schema"] == schema


# -- Refusals: of the text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "field", "fix"),
    [
        ("name: a\nstreams: {}\nname: b\n", "name", "keep one of the two"),
        (DEPARTURES.replace("  late: ", "  all: "), "operators.all", "keep one of the two"),
        ('{"name": "a", "operators": {"b": {"map": "x", "map": "y"}}}', "operators.b.map", "keep one of the two"),
        ("name: [\n", "query", "correct the syntax"),
        ("name: !!python/object:os.system x\n", "query", "correct the syntax"),
        ("- a\n- b\n", "query", "begin with `name"),
        ("\n", "query", "begin with `name"),
        ("/no/such/file.yaml", "query", "name a YAML, JSON or SQL file"),
    ],
)
def test_refused_texts(text: str, field: str, fix: str) -> None:
    error = refusal(text)
    assert error.field == field
    assert fix in error.fix


def test_a_refused_text_names_its_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "query.yaml"
    path.write_text("name: a\nstreams: [\n")

    error = refusal(path)
    assert error.field == str(path)
    assert "line 3" in error.problem


# -- Refusals: of the shape -------------------------------------------------------------------------------------------

STREAM = {"time": "at", "schema": {"carrier": "string"}}


def placed(column: dict[str, str]) -> dict[str, Any]:
    schema = {"a": "int", "b": column, "d": {"type": "int", "path": "c.d"}}
    return small(streams={"ewr": {"time": "at", "schema": schema}})


@pytest.mark.parametrize(
    ("query", "field", "fix"),
    [
        (small(delay_treshold="3s"), "delay_treshold", "did you mean delay_threshold?"),
        (small(name="a b"), "name", "a_b"),
        (small(name=None), "name", "write text"),
        (small(streams={}), "streams", "add streams: {ewr:"),
        (small(streams={"9a": STREAM}), "streams.9a", "_9a"),
        (small(streams={"ewr": {"time": "at"}}), "streams.ewr.schema", "add schema: {carrier: string"),
        (small(streams={"ewr": {**STREAM, "schema": {}}}), "streams.ewr.schema", "add schema: {carrier: string"),
        (small(streams={"ewr": {**STREAM, "schema": {"": "int"}}}), "streams.ewr.schema.", "give the column a name"),
        (small(streams={"ewr": {"schema": {"a": "int"}}}), "streams.ewr.time", "add time: departed_at"),
        (small(streams={"ewr": {**STREAM, "time_unit": "sec"}}), "streams.ewr.time_unit", "s, ms, us, ns"),
        (small(streams={"ewr": {**STREAM, "boundary": "date"}}), "streams.ewr.boundary", "did you mean data?"),
        (small(streams={"ewr": {**STREAM, "topic": "a b"}}), "streams.ewr.topic", "dots, underscores and dashes"),
        (small(streams={"ewr": {**STREAM, "disorder": 5}}), "streams.ewr.disorder", '"5s" or "5ms"'),
        (small(streams={"ewr": {**STREAM, "keys": []}}), "streams.ewr.keys", "did you mean key?"),
        (small(streams={"ewr": {**STREAM, "schema": {"a": "strin"}}}), "streams.ewr.schema.a", "did you mean string?"),
        (small(streams={"ewr": {**STREAM, "schema": {"a": "float"}}}), "streams.ewr.schema.a", "write double"),
        (placed({"type": "int"}), "streams.ewr.schema.b", "{type: string, from: key}"),
        (placed({"type": "int", "path": "x.y", "from": "key"}), "streams.ewr.schema.b", "{type: string, from: key}"),
        (placed({"type": "int", "from": "value"}), "streams.ewr.schema.b.from", "offset, tombstone, or header."),
        (placed({"type": "int", "from": "header."}), "streams.ewr.schema.b.from", "or header.NAME"),
        (placed({"type": "int", "from": "timestamp"}), "streams.ewr.schema.b.type", "write type: timestamp"),
        (placed({"type": "string", "from": "offset"}), "streams.ewr.schema.b.type", "write type: int"),
        (placed({"type": "strin", "from": "key"}), "streams.ewr.schema.b.type", "did you mean string?"),
        (placed({"type": "decimal(40, 2)", "from": "key"}), "streams.ewr.schema.b.type", '"decimal(18, 2)", in quotes'),
        (placed({"type": "decimal(18", "from": "key"}), "streams.ewr.schema.b.type", '"decimal(18, 2)", in quotes'),
        (placed({"type": "int", "pat": "x.y", "path": "x"}), "streams.ewr.schema.b.pat", "did you mean path?"),
        (placed({"type": "integer", "path": "x.y"}), "streams.ewr.schema.b.type", "write int"),
        (placed({"type": "int", "path": "$.x"}), "streams.ewr.schema.b.path", "items[0].price"),
        (placed({"type": "int", "path": "x."}), "streams.ewr.schema.b.path", "items[0].price"),
        (placed({"type": "int", "path": "x..y"}), "streams.ewr.schema.b.path", "items[0].price"),
        (placed({"type": "int", "path": ".x"}), "streams.ewr.schema.b.path", "items[0].price"),
        (placed({"type": "int", "path": "[0].x"}), "streams.ewr.schema.b.path", "items[0].price"),
        (placed({"type": "int", "path": "items[*]"}), "streams.ewr.schema.b.path", "items[0].price"),
        (placed({"type": "int", "path": "items[-1]"}), "streams.ewr.schema.b.path", "items[0].price"),
        (placed({"type": "int", "path": ""}), "streams.ewr.schema.b.path", "items[0].price"),
        (placed({"type": "int", "path": "a.x"}), "streams.ewr.schema.b", "a place of its own"),
        (placed({"type": "int", "path": "a"}), "streams.ewr.schema.b", "a place of its own"),
        (placed({"type": "int", "path": "at.x"}), "streams.ewr.schema.at", "a place of its own"),
        (placed({"type": "int", "path": "c[0]"}), "streams.ewr.schema.d", "a place of its own"),
        (small(streams={"ewr": {**STREAM, "key": "carrier"}}), "streams.ewr.key", "write a list: [carrier]"),
        (small(streams={"ewr": {**STREAM, "key": ["carier"]}}), "streams.ewr.key", "did you mean carrier?"),
        (small(streams={"ewr": {**STREAM, "key": ["carrier"] * 2}}), "streams.ewr.key", "name carrier once"),
        (
            small(streams={"ewr": {**STREAM, "schema": {"time": "timestamp"}}}),
            "streams.ewr.schema.time",
            "make it the stream's `time`",
        ),
        (
            small(streams={"ewr": {**STREAM, "schema": {"window_end": "int"}}}),
            "streams.ewr.schema.window_end",
            "rename the column",
        ),
        (small(operators=[]), "operators", "write a mapping"),
        (with_operator(filtre="all", where="delay > 1"), "operators.extra", "did you mean filter instead of filtre?"),
        (with_operator(filter="all", map="all"), "operators.extra", "keep one of them: filter, map"),
        (small(operators={"late": 3}), "operators.late", "such as {filter: INPUT"),
        (with_operator(filter="all"), "operators.extra.where", 'add where: "dep_delay > 15"'),
        (with_operator(filter="all", where=True), "operators.extra.where", "in quotes"),
        (with_operator(filter="all", wehre="x"), "operators.extra.where", "add where"),
        (with_operator(map="all", select={}), "operators.extra.select", "add select"),
        (with_operator(map="all", select={"time": "delay"}), "operators.extra.select.time", "choose another name"),
        (with_operator(union=[]), "operators.extra.union", "add union: [ewr, jfk]"),
        (with_operator(union="ewr"), "operators.extra.union", "write a list: [ewr]"),
        (with_operator(union=["ewr", "ewr"]), "operators.extra.union", "name ewr once"),
        (
            with_operator(aggregate="all", compute={"n": "count(*)"}),
            "operators.extra.window",
            "add window: {tumbling: 10m}",
        ),
        (
            with_operator(aggregate="all", window={"tumbling": "0s"}, compute={"n": "count(*)"}),
            "operators.extra.window.tumbling",
            "above zero",
        ),
        (
            with_operator(aggregate="all", window={"tumbling": "1s"}, compute={}),
            "operators.extra.compute",
            "add compute: {n: count(*)}",
        ),
        (
            with_operator(aggregate="all", window={}, compute={"n": "count(*)"}),
            "operators.extra.window",
            "write {tumbling: 10m}, {sliding: 1h, every: 10m} or {session: 30m}",
        ),
        (
            with_operator(aggregate="all", window={"tumbling": "1s", "sliding": "1s"}, compute={"n": "count(*)"}),
            "operators.extra.window",
            "write {tumbling: 10m}, {sliding: 1h, every: 10m} or {session: 30m}",
        ),
        (
            with_operator(aggregate="all", window={"sliding": "1h"}, compute={"n": "count(*)"}),
            "operators.extra.window.every",
            "add every: 10m",
        ),
        (
            with_operator(aggregate="all", window={"sliding": "1h", "every": "2h"}, compute={"n": "count(*)"}),
            "operators.extra.window.every",
            "at most 1h",
        ),
        (
            with_operator(aggregate="all", window={"tumbling": "1h", "every": "1m"}, compute={"n": "count(*)"}),
            "operators.extra.window.every",
            "remove `every`",
        ),
        (
            with_operator(aggregate="all", window={"sliding": "1h", "every": "13ms"}, compute={"n": "count(*)"}),
            "operators.extra.window.every",
            "write 36ms",
        ),
        (
            with_operator(aggregate="all", window={"sliding": "1s", "every": "999999us"}, compute={"n": "count(*)"}),
            "operators.extra.window.every",
            "write 1s",
        ),
        (
            with_operator(aggregate="all", window={"tumblin": "1h"}, compute={"n": "count(*)"}),
            "operators.extra.window.tumblin",
            "did you mean tumbling?",
        ),
        (with_operator(join=["ewr"], on=["carrier"], within="1m"), "operators.extra.join", "join: [LEFT, RIGHT]"),
        (with_operator(join=["ewr"] * 3, on=["carrier"], within="1m"), "operators.extra.join", "keep 2"),
        (with_operator(join=["ewr", "jfk"], on=[], within="1m"), "operators.extra.on", "add on: [carrier]"),
        (with_operator(join=["ewr", "jfk"], on=["carrier"]), "operators.extra.within", "add within: 30m"),
        (
            with_operator(join=["ewr", "jfk"], on=["carrier"], within="1m", how="outer"),
            "operators.extra.how",
            "inner, left",
        ),
        (with_operator(distinct="all", on=[]), "operators.extra.on", "add on: [carrier]"),
        (
            with_operator(distinct="all", on=["carrier"], window={"sliding": "1h", "every": "1m"}),
            "operators.extra.window",
            "write {tumbling: 1h}",
        ),
        (
            with_operator(aggregate="all", window={"tumbling": "1h", "session": "1m"}, compute={"n": "count(*)"}),
            "operators.extra.window",
            "or {session: 30m}",
        ),
        (
            with_operator(aggregate="all", window={"session": "1h", "every": "1m"}, compute={"n": "count(*)"}),
            "operators.extra.window.every",
            "remove `every`",
        ),
        (
            with_operator(aggregate="all", window={"tumbling": "1h", "longest": "1d"}, compute={"n": "count(*)"}),
            "operators.extra.window.longest",
            "remove `longest`",
        ),
        (
            with_operator(aggregate="all", window={"session": "1h", "longest": "59m"}, compute={"n": "count(*)"}),
            "operators.extra.window.longest",
            "at least 1h",
        ),
        (
            with_operator(top="all", k=5, order_by="delay", window={"session": "1h"}),
            "operators.extra.window",
            "top of an aggregate",
        ),
        (
            with_operator(distinct="all", on=["carrier"], window={"session": "1h"}),
            "operators.extra.window",
            "a deduplicate with within: 1h",
        ),
        (with_operator(lookup="ewr", on=["carrier"]), "operators.extra.lookup", "write a list: [ewr]"),
        (with_operator(lookup=["ewr"], on=["carrier"]), "operators.extra.lookup", "lookup: [LEFT, TABLE]"),
        (with_operator(lookup=["ewr", "jfk"]), "operators.extra.on", "add on: [carrier]"),
        (with_operator(lookup=["ewr", "jkf"], on=["carrier"]), "operators.extra.lookup", "did you mean jfk?"),
        (
            small(operators={"seen": {"lookup": ["ewr", "jfk"], "on": ["carrier"]}}, output="seen", reconcile="undo_redo"),
            "reconcile",
            "add within: 1d to operators.seen",
        ),
        (with_operator(deduplicate="all", on=["carrier"]), "operators.extra.within", "add within: 30m"),
        (with_operator(deduplicate="all", on=["carrier"], within="0s"), "operators.extra.within", "above zero"),
        (with_operator(deduplicate="all", within="1h"), "operators.extra.on", "add on: [carrier]"),
        (with_operator(deduplicat="all", on=["carrier"], within="1h"), "operators.extra", "did you mean deduplicate"),
        (with_operator(top="all", k=5, order_by="delay desc"), "operators.extra.window", "add window: {tumbling: 10m}"),
        (with_operator(top="all", k=0, order_by="delay", window={"tumbling": "1s"}), "operators.extra.k", "at least 1"),
        (with_operator(top="all", k=True, order_by="delay", window={"tumbling": "1s"}), "operators.extra.k", "whole"),
        (small(reconcile="checkpoint"), "reconcile", "did you mean checkpoint_redo?"),
        (small(policy="later"), "policy", "FAILURE/STABILIZATION"),
        (small(policy={"failure": "proces"}), "policy.failure", "did you mean process?"),
        (small(policy={"stabilisation": "process"}), "policy.stabilisation", "did you mean stabilization?"),
        (small(replicas=0), "replicas", "at least 1"),
        (small(replicas="2"), "replicas", "whole number"),
        (small(replicas=True), "replicas", "whole number"),
        (small(shards=100_000), "shards", "at most 1024"),
        (small(engine="sparc"), "engine", "did you mean spark?"),
        (small(engine=["native", "sparc"], replicas=2), "engine", "did you mean spark?"),
        (small(engine=["native", "spark"], replicas=3), "engine", "such as [native, spark, native]; or one for all"),
        (small(engine=["spark", "native"]), "engine", "such as [spark]"),
        (small(engine=[]), "engine", "such as [native]"),
        (small(engine={"r0": "spark"}), "engine", "the choices are: native, spark"),
        (small(tuning={"buckets": "1s"}), "tuning.buckets", "did you mean bucket?"),
        (small(tuning={"bucket": "0s"}), "tuning.bucket", "above zero"),
        (small(tuning={"memory": 5}), "tuning.memory", '"256MB"'),
        (small(tuning={"memory": "999B"}), "tuning.memory", "at least 1KB"),
        (small(tuning={"retention": "999ms"}), "tuning.retention", "at least 1s"),
        (small(tuning={"retention": "1s", "heartbeat": "200ms"}), "tuning.retention", "at least 2s"),
        (small(tuning={"checkpoint_interval": "1us"}), "tuning.checkpoint_interval", "at least 100ms"),
        (small(name="q" * 101), "name", "at most 100 letters"),
        (small(streams={"s" * 65: STREAM}), f"streams.{'s' * 65}", "at most 64 letters"),
        (small(tuning={"alpha_x": "fast"}), "tuning.alpha_x", "or write auto"),
        (small(fragments={}), "fragments", "add"),
        (small(fragments={"a": {"operators": []}}), "fragments.a.operators", "add operators: [late"),
        (
            small(fragments={"a": {"operators": ["all", "late"], "replica": 1}}),
            "fragments.a.replica",
            "did you mean replicas?",
        ),
    ],
)
def test_refused_shapes(query: Any, field: str, fix: str) -> None:
    error = refusal(query)
    assert error.field == field
    assert fix in error.fix
    assert error.problem


@pytest.mark.parametrize(
    ("fields", "field", "fix"),
    [
        ({"format": "json", "csv": {"delimiter": ";"}}, "csv", "write format: csv"),
        ({"csv": {"delimeter": ";"}}, "csv.delimeter", "did you mean delimiter?"),
        ({"csv": {"delimiter": ";;"}}, "csv.delimiter", "one character"),
        ({"csv": {"delimiter": '"'}}, "csv.delimiter", "one character"),
        ({"csv": {"header": ["at", "at", "carrier"]}}, "csv.header", "name at once"),
        ({"csv": {"header": []}}, "csv.header", "add"),
        ({"csv": {"header": ["at", "carier"]}}, "csv.header", "did you mean carier?"),
        ({"schema": {"carrier": "string"}}, "csv", "csv: {header: [at, carrier]}"),
        ({"schema": {"at": "int", "u": {"type": "string", "path": "a.b"}}}, "schema.u.path", "[..., u, ...]"),
        ({"registry": "main"}, "registry", "format: avro"),
    ],
)
def test_what_csv_cannot_give_is_refused(fields: dict[str, Any], field: str, fix: str) -> None:
    stream = {"time": "at", "schema": {"at": "timestamp", "carrier": "string"}, "format": "csv", **fields}
    error = refusal({"name": "q", "streams": {"s": stream}, "output": "s"})
    assert error.field == f"streams.s.{field}"
    assert fix in error.fix and error.problem


# -- Refusals: of names, graph and thresholds -------------------------------------------------------------------------


def with_name(group: str, name: str) -> dict[str, Any]:
    """The small query, with something of this name added."""
    if group == "streams":
        return small(streams={**small()["streams"], name: STREAM})
    if group == "operators":
        return small(operators={**small()["operators"], name: {"filter": "all", "where": "true"}})
    return small(fragments={name: {"operators": ["all", "late"]}})


@pytest.mark.parametrize("group", ["streams", "operators", "fragments"])
@pytest.mark.parametrize("name", ["egress", "r0", "r17"])
def test_reserved_names_are_refused(group: str, name: str) -> None:
    error = refusal(with_name(group, name))
    assert error.field == f"{group}.{name}"
    assert f"{name}_{group[:-1]}" in error.fix


@pytest.mark.parametrize(("group", "name"), [("operators", "ewr"), ("fragments", "ewr"), ("fragments", "late")])
def test_names_are_shared_by_nothing(group: str, name: str) -> None:
    error = refusal(with_name(group, name))
    assert error.field == f"{group}.{name}"
    assert "already the name of" in error.problem
    assert "rename it" in error.fix


def test_main_is_the_name_of_the_only_fragment() -> None:
    assert refusal(with_name("operators", "main")).field == "operators.main"
    assert load_query(with_name("fragments", "main")).fragments is not None


@pytest.mark.parametrize(
    ("query", "field", "fix"),
    [
        (with_operator(filter="alll", where="true"), "operators.extra.filter", "did you mean all?"),
        (with_operator(union=["ewr", "jkf"]), "operators.extra.union", "did you mean jfk?"),
        (small(output="lat"), "output", "did you mean late?"),
        (
            small(operators={"a": {"filter": "b", "where": "x"}, "b": {"filter": "a", "where": "x"}}),
            "operators.b.filter",
            "let b read something other than a",
        ),
        (with_operator(filter="extra", where="x"), "operators.extra.filter", "something other than extra"),
        (small(fragments={"a": {"operators": ["late", "al"]}}), "fragments.a.operators", "did you mean all?"),
        (small(fragments={"a": {"operators": ["late", "ewr"]}}), "fragments.a.operators", "remove ewr"),
        (small(fragments={"a": {"operators": ["late"]}}), "fragments", "add all to the operators of one of: a"),
        (
            small(fragments={"a": {"operators": ["all", "late"]}, "b": {"operators": ["late"]}}),
            "fragments.b.operators",
            "remove late from one of the two",
        ),
        (small(delay_threshold="40ms"), "delay_threshold", "at least 41ms"),
        (small(delay_threshold="3s", tuning={"bucket": "2s"}), "delay_threshold", "at least 4s201ms"),
        (small(tuning={"alpha_x": "3s"}), "tuning.alpha_x", "less than 3s"),
        (small(tuning={"heartbeat": "3001ms"}), "tuning.heartbeat", "at most 3s"),
        (
            small(operators={"uniq": {"distinct": "ewr", "on": ["carrier"]}}, output="uniq", reconcile="undo_redo"),
            "reconcile",
            "add a window to operators.uniq",
        ),
    ],
)
def test_refused_queries(query: Any, field: str, fix: str) -> None:
    error = refusal(query)
    assert error.field == field
    assert fix in error.fix


def test_the_smallest_delay_threshold_named_is_accepted() -> None:
    assert load_query(small(delay_threshold="41ms")).delay_threshold == 41_000


@pytest.mark.parametrize(
    ("threshold", "tuning", "expected_ms"),
    [
        ("3s", {}, (100, 100, 100)),
        ("1h", {}, (100, 100, 100)),
        ("1s", {}, (50, 100, 100)),
        ("210ms", {}, (10, 21, 21)),
        ("410ms", {}, (20, 41, 41)),
        ("60ms", {}, (10, 10, 10)),
        ("3s", {"bucket": "250ms", "heartbeat": "7ms"}, (250, 100, 7)),
        ("1s", {"bucket": "auto", "boundary_interval": "1ms", "heartbeat": "auto"}, (50, 1, 100)),
    ],
)
def test_what_the_query_does_again_and_again_follows_from_x_unless_it_says_how_often(
    threshold: str, tuning: dict[str, str], expected_ms: tuple[int, int, int]
) -> None:
    found = load_query(small(delay_threshold=threshold, tuning=tuning)).intervals
    assert found == Intervals(*(ms * 1_000 for ms in expected_ms))


@pytest.mark.parametrize("tuning", [{}, {"bucket": "0.1s"}, {"bucket": "30ms"}, {"bucket": "2s"}, {"boundary_interval": "7ms"}])
def test_the_least_x_is_the_smallest_that_the_intervals_which_follow_from_it_allow(tuning: dict[str, str]) -> None:
    least = load_query(small(delay_threshold="1h", tuning=tuning)).tuning.delay_threshold_least
    assert load_query(small(delay_threshold=f"{least}us", tuning=tuning)).intervals.completion < least / 2
    assert f"at least {format_duration(least)}" in refusal(small(delay_threshold=f"{least - 1}us", tuning=tuning)).fix


def test_the_bounds_of_tuning_and_names_are_themselves_accepted() -> None:
    tuning = {"heartbeat": "3s", "retention": "30s", "checkpoint_interval": "100ms", "memory": "1KB"}
    query = load_query(small(name="q" * 100, tuning=tuning))

    assert query.name == "q" * 100
    assert query.dump()["tuning"].items() >= tuning.items()


@pytest.mark.parametrize(("size", "every"), [("1h", "36ms"), ("100s", "1ms"), ("24h", "1s"), ("1h", "7s")])
def test_a_window_of_many_pieces_is_accepted(size: str, every: str) -> None:
    assert Window.model_validate({"sliding": size, "every": every}).every_us


def test_unbounded_state_that_reaches_nobody_does_not_matter() -> None:
    query = with_operator(distinct="ewr", on=["carrier"])

    assert load_query({**query, "reconcile": "undo_redo"}).unbounded == ()
    assert load_query({**query, "output": "extra"}).unbounded == ("extra",)
