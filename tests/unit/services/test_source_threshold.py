"""A source follows X while it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from boreal.query.plan import Plan
from boreal.query.spec import load_query
from deployment.joined_sources import SourceReaders
from deployment.layout import Layout, make_layout
from deployment.query_record import QueryRecord
from services.source.incarnation import SourceIncarnation
from services.source.source import SourceProcess
from tests.harness import query_of

AUTO = {"bucket": "100ms", "boundary_interval": "auto", "heartbeat": "auto"}


def record(x: str, **options: Any) -> QueryRecord:
    return QueryRecord("q", load_query(query_of(x=x, tuning=AUTO, **options)).dump(), 1)


@dataclass
class Incarnation:
    plan: Plan
    changes: int = 0

    def set_threshold(self, plan: Plan) -> None:
        self.plan = plan
        self.changes += 1


@pytest.fixture
def layout() -> Layout:
    return make_layout(record("3s").query, ("a",))


def test_its_boundaries_follow_a_new_x_of_its_query(layout: Layout) -> None:
    process = object.__new__(SourceProcess)
    process.layout, process.readers = layout, SourceReaders("q", next(iter(layout.plan.sources)).operator, "q")
    incarnation = Incarnation(layout.plan)
    of_another = replace(record("1s"), name="other")
    for name, told in (("other", of_another), ("q", record("3s")), ("q", None), ("q", record("3s", policy="delay/delay"))):
        process._take_change(cast(SourceIncarnation, incarnation), lambda: None, name, told)
    assert not incarnation.changes, "that is no new X of this query"
    process._take_change(cast(SourceIncarnation, incarnation), lambda: None, "q", record("500ms"))
    plan = incarnation.plan
    assert (plan.delay_threshold_us, plan.boundary_interval_us, plan.sign_of_life_us) == (500_000, 50_000, 50_000)
