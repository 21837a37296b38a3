"""Which ranges of results can be had, and how what was given is compared with what is computed."""

from __future__ import annotations

from typing import Any

import pytest

from boreal.model.errors import UserError
from boreal.model.frames import INFINITY
from boreal.query.spec import Query, load_query
from deployment.layout import make_layout
from services.egress.history import (
    DeliveredRow,
    HistoryComparison,
    ResultRange,
    RowDifference,
    SourceExtent,
    compare,
    resolve_range,
)
from sunion.tape import BEGINNING
from tests.harness import S, query_of

HOUR = 3600 * S
SLIDING = {"aggregate": "all", "window": {"sliding": "2h", "every": "1h"}, "by": ["k"], "compute": {"n": "count(*)"}}
QUERY = load_query(query_of({"all": {"union": ["a", "b"]}, "out": SLIDING}, "out", ("a", "b"), tuning={"history": "7d"}))
EVER = load_query(query_of({"out": {"distinct": "a", "on": ["k"]}}, "out", ("a",)))


def asked(
    since: int | None, until: int | None, reach: int = BEGINNING, stable_to: int = 9 * HOUR, query: Query = QUERY
) -> ResultRange:
    streams = dict.fromkeys(query.streams, BEGINNING)
    extent = SourceExtent({}, {**streams, "a": reach}, stable_to)
    return resolve_range(query, make_layout(query, ("a",)), extent, since, until, stable_to)


def refusal(*given: Any, **more: Any) -> UserError:
    with pytest.raises(UserError) as refused:
        asked(*given, **more)
    return refused.value


def test_by_default_a_range_is_all_that_can_be_had():
    assert asked(None, None) == ResultRange(BEGINNING, 9 * HOUR)
    assert asked(None, None, stable_to=INFINITY) == ResultRange(BEGINNING, INFINITY)
    assert asked(2 * HOUR, 5 * HOUR + 1) == ResultRange(2 * HOUR, 5 * HOUR + 1)


def test_where_rows_are_gone_the_first_window_that_has_all_of_its_own_is_the_earliest():
    """Rows are there from half past three: the window from four to six is the first that lacks none. Its result is of just
    before six; the one of just before five is the last that lacks some."""
    assert asked(None, None, reach=3 * HOUR + HOUR // 2).since == 5 * HOUR
    refused = refusal(4 * HOUR, None, reach=3 * HOUR + HOUR // 2)
    assert (refused.field, refused.value) == ("--from", "1970-01-01T04:00:00.000000Z")
    assert "1970-01-01T05:00:00.000000Z" in refused.problem
    assert "tuning.history, now 7d" in refused.fix


def test_what_is_not_final_yet_is_refused():
    refused = refusal(None, 9 * HOUR + 1)
    assert (refused.field, refused.fix.split()[2]) == ("--to", "1970-01-01T09:00:00.000000Z")
    assert refusal(None, None, stable_to=BEGINNING).field == "NAME"


def test_an_empty_range_is_refused():
    assert refusal(9 * HOUR, None).field == "--from"
    assert refusal(3 * HOUR, 2 * HOUR).field == "--from"


def test_a_state_that_forgets_nothing_can_be_computed_of_whole_logs_only():
    assert asked(5 * HOUR, None, query=EVER) == ResultRange(5 * HOUR, 9 * HOUR)
    assert refusal(None, None, reach=S, query=EVER).field == "NAME"


def given(*texts: str) -> list[DeliveredRow]:
    return [DeliveredRow(10 + place, 0, text) for place, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        (given(), [], HistoryComparison(0, 0, None)),
        (given("a", "b"), ["a", "b"], HistoryComparison(2, 2, None)),
        (given("a", "b", "c"), ["a", "x", "y"], HistoryComparison(3, 3, RowDifference(2, 11, "b", "x"))),
        (given("a"), ["a", "b"], HistoryComparison(1, 2, RowDifference(2, None, None, "b"))),
        (given("a", "a", "b"), ["a", "b"], HistoryComparison(3, 2, RowDifference(2, 11, "a", "b"))),
        (given("a", "b"), ["a"], HistoryComparison(2, 1, RowDifference(2, 11, "b", None))),
    ],
)
def test_rows_are_compared_one_by_one(left: list[DeliveredRow], right: list[str], found: HistoryComparison):
    assert compare(left, right) == found
