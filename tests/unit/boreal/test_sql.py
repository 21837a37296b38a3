"""A query in SQL: both forms print as each other, and what a stream cannot give is refused where it stands."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from boreal.model.errors import UserError
from boreal.query.planner import plan
from boreal.query.spec import Query, load_query
from boreal.query.sql_writing import write_sql
from boreal_cli.app import app
from simulation.queries import SCHEMA, Menu, make_operators
from tests.installing import install_example
from tests.thoroughness import some

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*/*.yaml"))

STREAMS = """\
CREATE STREAM ewr (carrier string, dest string, dep_delay double)
WITH (topic = 'flights.ewr', time = 'departed_at', key = ('carrier'));
CREATE STREAM jfk (carrier String, dest string, dep_delay DOUBLE) WITH (time = 'departed_at');
"""


def both(sql: str) -> Query:
    return load_query(STREAMS + sql)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_print_as_each_other(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_example(tmp_path / "installed", monkeypatch)
    query = load_query(path)
    text = write_sql(query)
    assert load_query(text) == query
    other = tmp_path / "query.sql"
    other.write_text(text)
    shown = CliRunner().invoke(app, ["sql", str(path)])
    assert shown.stdout == text
    back = CliRunner().invoke(app, ["sql", str(other)])
    as_json = CliRunner().invoke(app, ["sql", str(path), "--json"])
    assert json.loads(as_json.stdout) == {"form": "sql", "text": text}
    assert load_query(back.stdout) == query and yaml.safe_load(back.stdout)["name"] == query.name


def test_random_queries_print_as_each_other() -> None:
    kinds: set[str] = set()
    for seed in range(some(450, 9)):
        query = random_query(Random(seed))
        text = write_sql(query)
        assert load_query(text) == query, text
        assert list(load_query(text).operators) == list(query.operators)
        assert load_query(yaml.safe_dump(query.written(), sort_keys=False)) == query
        kinds |= {spec.kind for spec in query.operators.values()}
    assert kinds == {"filter", "map", "union", "aggregate", "join", "lookup", "distinct", "deduplicate", "top"}


def random_query(rng: Random) -> Query:
    streams = ["a", "order", "left"][: rng.randint(1, 3)]
    sketch, output = make_operators(rng, streams, rng.choice(("single", "chain", "diamond")), Menu(recent=rng.random() < 0.5))
    fragments = {
        f"f{number}": {"operators": block, "replicas": rng.randint(1, 3)}
        for number, block in enumerate(block for block in sketch.blocks if block)
    }
    file: dict[str, Any] = {
        "name": rng.choice(("q", "select", output)),
        "streams": {
            name: {
                "time": rng.choice(("time", "at the time", "it's")),
                "schema": {
                    column: rng.choice((
                        kind, kind, {"type": kind, "path": f"nested[{place}]['the {column}'].x"},
                        {"type": kind, "from": "header.it's"},
                    ))
                    for place, (column, kind) in enumerate(SCHEMA.items())
                },
                "disorder": f"{rng.randint(0, 9)}s",
            }
            for name in streams
        },
        "operators": sketch.operators,
        "output": output,
        "delay_threshold": f"{rng.randint(2_000, 90_000)}ms",
        "reconcile": rng.choice(("checkpoint_redo", "overlay_redo")),
        "policy": rng.choice(("process/delay", {"failure": "suspend"}, "process/process")),
        "engine": rng.choice((None, "native")),
        "latest": rng.random() < 0.5,
        "slo": rng.choice((None, "99.9%/7d")),
        "tuning": {"memory": f"{rng.randint(1, 5)}MB", "bucket": "1m30s" if rng.random() < 0.2 else "50ms", "alpha_x": "auto"},
        "fragments": fragments or None,
    }
    if file["tuning"]["bucket"] == "1m30s":
        file["delay_threshold"] = "1h"
    given = {key: value for key, value in file.items() if value is not None}
    has_key = bool(plan(load_query({**given, "latest": False})).output_key)
    return load_query({**given, "latest": given["latest"] and has_key})


def test_a_query_with_several_clauses_is_several_operators() -> None:
    query = both(
        "CREATE VIEW airports AS SELECT * FROM ewr UNION ALL SELECT * FROM jfk WHERE dest <> 'X';\n"
        "create query departures with (delay_threshold = '4s', tuning.bucket = '50ms', replicas = 2) as\n"
        "select carrier, window_end, count(*) as flights, avg(dep_delay) filter (where dep_delay > 0) as mean\n"
        "from airports where dep_delay > 15 -- late\n"
        "group by hop(interval '10' minute, interval '1' hour), carrier having flights > 1"
    )
    window = {"sliding": "1h", "every": "10m"}
    compute = {"flights": "count(*)", "mean": "avg(dep_delay) filter (where dep_delay > 0)"}
    assert query.written()["operators"] == {
        "airports_2": {"filter": "jfk", "where": "dest <> 'X'"},
        "airports": {"union": ["ewr", "airports_2"]},
        "departures_where": {"filter": "airports", "where": "dep_delay > 15"},
        "departures_grouped": {"aggregate": "departures_where", "window": window, "by": ["carrier"], "compute": compute},
        "departures": {"filter": "departures_grouped", "where": "flights > 1"},
    }
    assert query.output == "departures" and query.delay_threshold == 4_000_000 and query.tuning.bucket == 50_000
    assert query.streams["jfk"].columns["carrier"] == "string" and query.streams["ewr"].key == ("carrier",)


def test_a_join_distinct_and_top_are_written_as_elsewhere() -> None:
    query = both(
        "CREATE VIEW once AS SELECT DISTINCT ON (TUMBLE('1h'), carrier) * FROM ewr;"
        "CREATE VIEW paired AS SELECT carrier, dep_delay + dep_delay_right AS total FROM once LEFT JOIN jfk "
        "ON jfk.carrier = once.carrier AND jfk.time BETWEEN once.time - INTERVAL '30' SECOND AND once.time + INTERVAL '30s';"
        "CREATE QUERY worst AS SELECT *, row_number() OVER (PARTITION BY TUMBLE('1h'), carrier ORDER BY total DESC, carrier) "
        "AS rank FROM paired QUALIFY rank <= 3"
    )
    assert query.written()["operators"] == {
        "once": {"distinct": "ewr", "on": ["carrier"], "window": {"tumbling": "1h"}},
        "paired_joined": {"join": ["once", "jfk"], "on": ["carrier"], "within": "30s", "how": "left"},
        "paired": {"map": "paired_joined", "select": {"carrier": "carrier", "total": "dep_delay + dep_delay_right"}},
        "worst": {
            "top": "paired", "k": 3, "order_by": "total DESC, carrier", "window": {"tumbling": "1h"}, "by": ["carrier"],
        },
    }  # fmt: skip
    plan(query)


def test_sessions_and_repetitions_are_written_with_a_word_of_their_own() -> None:
    query = both(
        "CREATE VIEW once AS SELECT DISTINCT ON (WITHIN('90m'), carrier, dest) * FROM ewr;"
        "CREATE VIEW visits AS SELECT dest, count(*) AS n FROM once GROUP BY session('30m'), dest;"
        "CREATE QUERY days AS SELECT dest, count(*) AS n FROM once GROUP BY SESSION(INTERVAL '30' MINUTE, '1d'), dest"
    )
    compute = {"n": "count(*)"}
    assert query.written()["operators"] == {
        "once": {"deduplicate": "ewr", "on": ["carrier", "dest"], "within": "1h30m"},
        "visits": {"aggregate": "once", "window": {"session": "30m"}, "by": ["dest"], "compute": compute},
        "days": {"aggregate": "once", "window": {"session": "30m", "longest": "1d"}, "by": ["dest"], "compute": compute},
    }
    assert load_query(write_sql(query)) == query


def test_a_lookup_is_an_asof_join() -> None:
    query = both(
        "CREATE VIEW seen AS SELECT carrier, dep_delay_right AS before FROM ewr ASOF LEFT JOIN jfk "
        "ON ewr.time BETWEEN jfk.time AND jfk.time + INTERVAL '1d' AND jfk.carrier = ewr.carrier;"
        "CREATE QUERY q AS SELECT * FROM seen ASOF JOIN jfk ON seen.carrier = jfk.carrier AND seen.time >= jfk.time"
    )
    assert query.written()["operators"] == {
        "seen_joined": {"lookup": ["ewr", "jfk"], "on": ["carrier"], "within": "1d", "how": "left"},
        "seen": {"map": "seen_joined", "select": {"carrier": "carrier", "before": "dep_delay_right"}},
        "q": {"lookup": ["seen", "jfk"], "on": ["carrier"]},
    }
    assert load_query(write_sql(query)) == query


def test_a_lookup_may_say_which_rows_delete() -> None:
    query = both(
        "CREATE VIEW changes AS SELECT carrier, dep_delay, dest = 'X' AS gone FROM jfk;"
        "CREATE QUERY q AS SELECT * FROM ewr ASOF JOIN changes "
        "ON ewr.carrier = changes.carrier AND NOT changes.gone AND ewr.time >= changes.time"
    )
    assert query.written()["operators"]["q"] == {"lookup": ["ewr", "changes"], "on": ["carrier"], "deleted": "gone"}
    assert load_query(write_sql(query)) == query


def test_both_forms_run_alike(tmp_path: Path) -> None:
    file = EXAMPLES[0].parents[1] / "sensors" / "load.yaml"
    other = tmp_path / "load.sql"
    other.write_text(write_sql(load_query(file)))
    sources = ["--source", "north=generate:100,3", "--source", "south=generate:100,3"]
    results = []
    for query, out in ((file, tmp_path / "one"), (other, tmp_path / "two")):
        ran = CliRunner().invoke(app, ["run", str(query), *sources, "--seed", "1", "--out", str(out)])
        assert ran.exit_code == 0, ran.output
        results.append((out / "changes.jsonl").read_bytes())
    assert results[0] == results[1] != b""


SELECTED = "CREATE QUERY q AS SELECT "


@pytest.mark.parametrize(
    ("sql", "problem", "place", "fix"),
    [
        (SELECTED + "* FROM ewr ORDER BY dep_delay", "a stream has no end", "5, column 37", "QUALIFY"),
        (SELECTED + "* FROM ewr\nLIMIT 3", "a stream has no end", "6, column 1", "QUALIFY"),
        (SELECTED + "carrier, count(*) AS n FROM ewr GROUP BY carrier", "without a window", "5, column 67", "TUMBLE"),
        (SELECTED + "* FROM ewr, jfk", "joins without a window", "5, column 33", "BETWEEN"),
        (SELECTED + "* FROM ewr JOIN jfk ON ewr.carrier = jfk.carrier", "joins without a window", "5, column 49", "BETWEEN"),
        (SELECTED + "* FROM ewr JOIN jfk ON ewr.carrier = jfk.dest", "different names", "5, column 49", "rename"),
        (SELECTED + "* FROM ewr FULL JOIN jfk ON x", "not a join that streams have", "5, column 37", "LEFT JOIN"),
        (SELECTED + "* FROM ewr UNION SELECT * FROM jfk", "each row with all rows ever", "5, column 43", "UNION ALL"),
        (SELECTED + "DISTINCT carrier FROM ewr", "needs the columns to compare", "5, column 26", "DISTINCT ON"),
        (SELECTED + "* FROM (SELECT * FROM ewr)", "in parentheses", "5, column 33", "view"),
        (SELECTED + "* FROM ewr e", "not the name of a stream", "5, column 33", "without an alias"),
        (SELECTED + "count(*) FROM ewr GROUP BY TUMBLE('1h')", "has no name", "5, column 26", "count(*) AS NAME"),
        (SELECTED + "dest, count(*) AS n FROM ewr GROUP BY TUMBLE('1h')", "neither in GROUP BY", "5, column 26", "add dest"),
        (SELECTED + "count(*) AS n FROM ewr GROUP BY TUMBLE('1h'), dest", "not selected", "5, column 58", "select dest too"),
        (SELECTED + "count(*) AS n FROM ewr GROUP BY TUMBLE(5)", "is not a duration", "5, column 65", "INTERVAL"),
        (SELECTED + "count(*) AS n FROM ewr GROUP BY HOP('1h', '10m')", "longer than the window", "5, column 58", "at most"),
        (SELECTED + "count(*) AS n FROM ewr GROUP BY SESSION('1h', '1m')", "shorter than the gap", "5, column 58", "at least"),
        (SELECTED + "count(*) AS n FROM ewr GROUP BY WITHIN('1h')", "not a column or a window", "5, column 58", "SESSION"),
        (SELECTED + "DISTINCT ON (WITHIN('1h')) * FROM ewr", "too few entries", "5, column 39", "add on"),
        (SELECTED + "* FROM ewr ASOF JOIN jfk ON ewr.carrier = jfk.carrier", "old enough", "5, column 54", "a.time >= b.time"),
        (
            SELECTED + "* FROM ewr ASOF JOIN jfk ON ewr.carrier = jfk.carrier AND ewr.time <= jfk.time",
            "not a condition that a lookup can have", "5, column 84", "a.time >= b.time",
        ),
        (SELECTED + "* FROM ewr ASOF RIGHT JOIN jfk ON x", "not a join that streams have", "5, column 37", "ASOF LEFT JOIN"),
        (SELECTED + "* FROM ewr WHERE dep_delay >\n 'x'", "mixes string and double", "5, column 43", "cast"),
        (SELECTED + "carrier, dep AS d FROM ewr", "dep is not a column", "5, column 35", "dep_delay"),
        (SELECTED + "* FROM ewk", "names no operator or stream", "5, column 19", "did you mean ewr"),
        (SELECTED + "carrier FROM ewk", "reads ewk", "5, column 19", "did you mean ewr"),
        (SELECTED + "* WHERE 1 = 1 FROM ewr", "stands out of order", "5, column 40", "once each"),
        (SELECTED + "* FROM ewr WHERE", "has nothing after it", "5, column 37", "CREATE QUERY"),
        ("CREATE QUERY q WITH (replica = 2) AS SELECT * FROM ewr", "replica is not known", "5, column 22", "replicas"),
        ("CREATE QUERY q WITH (tuning.bucket = ms) AS SELECT * FROM ewr", "not a value", "5, column 38", "in quotes"),
        ("CREATE QUERY q WITH (name = 'r') AS SELECT * FROM ewr", "stands in the statements", "5, column 22", "leave it out"),
        ("CREATE QUERY q WITH (shards = 2, shards = 3) AS SELECT * FROM ewr", "written twice", "5, column 34", "keep one"),
        ("CREATE VIEW v AS SELECT * FROM ewr; CREATE QUERY q AS SELECT * FROM v", "only repeats ewr", "5, column 15", "ewr"),
        ("CREATE STREAM x (at) WITH (time = 'at')", "is not a column", "5, column 18", "NAME TYPE"),
        ("CREATE STREAM x (a int PATH b) WITH (time = 'at')", "is not a place", "5, column 24", "PATH 'user.id'"),
        ("CREATE STREAM x(a int PATH '$.b') WITH (time='c'); CREATE QUERY q AS SELECT * FROM x", "a p", "5, column 17", "[0]"),
        ("CREATE STREAM x (a text) WITH (time = 'a'); CREATE QUERY q AS SELECT * FROM x", "of the", "5, column 18", "string"),
        ("CREATE STREAM x (at string); CREATE QUERY q AS SELECT * FROM x", "is missing", "5, column 18", "time:"),
        ("DROP VIEW v", "begins no statement", "5, column 1", "CREATE"),
    ],
)  # fmt: skip
def test_refusals_say_where(sql: str, problem: str, place: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        load_query(STREAMS + "\n" + sql)
    assert problem in caught.value.problem
    assert fix in caught.value.fix
    assert f"(line {place})" in caught.value.problem


def test_a_query_without_its_statement_or_its_end_is_refused() -> None:
    with pytest.raises(UserError, match="has no CREATE QUERY"):
        load_query(STREAMS)
    with pytest.raises(UserError, match="is not SQL"):
        load_query("CREATE QUERY q AS SELECT 'abc")
    with pytest.raises(UserError, match="is a second query"):
        load_query(STREAMS + "CREATE QUERY q AS SELECT * FROM ewr; CREATE QUERY r AS SELECT * FROM ewr")
