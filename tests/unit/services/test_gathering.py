"""Rows gather in the sources of a loaded process, and frames in its logs, if many of these have rows."""

from __future__ import annotations

from services.kafka.gathering import FEW_SOURCES, GatherPace


def test_rows_gather_where_many_sources_of_a_loaded_process_have_some() -> None:
    load = 2
    pace = GatherPace(FEW_SOURCES, lambda: load)
    assert [pace.degree(source, has_rows=True) for source in range(6)] == [0, 1, 1, 2, 2, 2]
    assert pace.degree("calm", has_rows=False) == 2, "the calm ones write when the others do"
    load = 1
    assert pace.degree(0, has_rows=True) == 1
    load = 0
    assert pace.degree(0, has_rows=True) == 0


def test_a_source_that_is_calm_or_has_ended_no_longer_counts() -> None:
    pace = GatherPace(FEW_SOURCES, lambda: 2)
    for source in range(4):
        pace.degree(source, has_rows=True)
    assert pace.degree(0, has_rows=False) == 1
    pace.leave(1)
    pace.leave("another")
    assert pace.degree(2, has_rows=True) == 1
    pace.leave(2)
    assert pace.degree(3, has_rows=True) == 0
