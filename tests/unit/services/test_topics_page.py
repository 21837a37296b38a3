"""docs/topics.md says of every topic what services/kafka/topics.py makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from boreal.model.errors import UserError
from boreal.query.planner import plan
from boreal.query.spec import load_query
from deployment.layout import Layout, make_layout
from deployment.query_record import QueryRecord
from services.kafka.topics import TopicSpec, query_topics, system_topics
from services.stack.children import query_children

PAGE = Path(__file__).resolve().parents[3] / "docs" / "topics.md"

SPEC: dict[str, Any] = {
    "name": "q",
    "streams": {"STREAM": {"topic": "in", "time": "at", "schema": {"carrier": "string"}, "key": ["carrier"]}},
    "operators": {"some": {"filter": "STREAM", "where": "carrier = 'UA'"}},
    "output": "some",
    "replicas": 2,
    "latest": True,
    "debezium": True,
    "records": "avro",
}
SITES = ("HOME", "SITE")
COLUMNS = 8


def row_of(spec: TopicSpec) -> str:
    """The line of the page's first table that speaks of a topic."""
    name = spec.name
    if name.startswith("q.log."):
        name = "q.log.STREAM.REPLICA"  # sources' logs have the same settings, "as below"
    name = name.replace("HOME", "SITE")
    rows = [line for line in PAGE.read_text().splitlines() if line.count("|") == COLUMNS + 1]
    [row] = [row for row in rows if f"`{name}`" in row.split("|")[1]]
    return row


def test_every_topic_is_on_the_page_with_its_settings():
    layout = Layout(plan(load_query(SPEC)), SITES)
    specs = [*system_topics(), *(spec for specs in query_topics(layout).values() for spec in specs)]
    assert len({spec.name for spec in specs}) == 16
    for spec in specs:
        settings = row_of(spec).split("|")[4].split()
        assert settings == [f"`{key}={value}`" for key, value in spec.config.items()], spec.name


def test_where_they_live():
    layout = Layout(plan(load_query(SPEC)), SITES)
    for site, specs in query_topics(layout).items():
        for spec in specs:
            where = row_of(spec).split("|")[2].strip()
            if where == "home":
                assert site == layout.home, spec.name


def test_a_stream_elsewhere_has_its_source_its_log_and_its_dead_letters_there():
    stream = {**SPEC["streams"]["STREAM"], "site": "b"}
    query = load_query({**SPEC, "streams": {"STREAM": stream, "near": {**stream, "topic": "in2", "site": None}}, "operators": {
        "both": {"union": ["STREAM", "near"]}, "some": {"filter": "both", "where": "carrier = 'UA'"},
    }})  # fmt: skip
    topics = {site: {spec.name for spec in specs} for site, specs in query_topics(make_layout(query, ("a", "b"))).items()}
    assert {"q.log.STREAM", "q.dlq"} <= topics["b"] and {"q.log.near", "q.dlq"} <= topics["a"]
    assert "q.log.STREAM" not in topics["a"] and "q.log.near" not in topics["b"]
    record = QueryRecord("q", query.dump(), 1)
    sources = {site: [c.name for c in query_children(record, ("a", "b"), (site,)) if c.kind == "source"] for site in "ab"}
    assert sources == {"a": ["source.q.near"], "b": ["source.q.STREAM"]}
    with pytest.raises(UserError, match=r"streams\.STREAM\.site: is not a site of this installation"):
        make_layout(query, ("a",))


def test_the_longest_names_still_make_topics():
    stream, merge, one, three, small, wide, join = (letter * 64 for letter in "smotuvj")
    count = {"aggregate": merge, "window": {"tumbling": "1s"}, "by": ["k"], "compute": {"n": "count(*)"}}
    query = load_query({
        "name": "q" * 100,
        "streams": {stream: {"time": "at", "schema": {"k": "string"}}},
        "operators": {
            merge: {"filter": stream, "where": "k <> ''"}, one: count, three: count,
            join: {"join": [one, three], "on": ["k"], "within": "1s"},
        },
        "output": join,
        "fragments": {
            "merge": {"operators": [merge], "replicas": 64}, small: {"operators": [one], "shards": 2},
            wide: {"operators": [three, join], "shards": 3},
        },
    })  # fmt: skip
    names = [spec.name for specs in query_topics(make_layout(query, ("home",))).values() for spec in specs]
    assert f"{'q' * 100}.log.{merge}-40{wide}.r63" in names and max(map(len, names)) <= 249
