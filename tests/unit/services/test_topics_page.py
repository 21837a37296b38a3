"""docs/topics.md says of every topic what services/topics.py makes of it."""

from __future__ import annotations

from pathlib import Path

from boreal.planner import plan
from boreal.spec import load_query
from services.layout import Layout
from services.topics import TopicSpec, query_topics, system_topics

PAGE = Path(__file__).resolve().parents[3] / "docs" / "topics.md"

SPEC = {
    "name": "q",
    "streams": {"STREAM": {"topic": "in", "time": "at", "schema": {"carrier": "string"}}},
    "operators": {"some": {"filter": "STREAM", "where": "carrier = 'UA'"}},
    "output": "some",
    "replicas": 2,
    "latest": True,
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
    assert len({spec.name for spec in specs}) == 11
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
