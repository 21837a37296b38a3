"""Logs that are trimmed while it is looked for what they hold."""

from __future__ import annotations

import pytest

from boreal.model.frames import INFINITY, LogId
from deployment.layout import make_layout
from logs.log import TrimmedError
from services.egress import history
from services.egress.history import TRIES, ResultRange, SourceExtent, find_range
from sunion.tape import BEGINNING
from tests.spark.jobs import query_named

LAYOUT = make_layout(query_named("q", 1), ("a",))
EVERYTHING = ResultRange(BEGINNING, INFINITY)


@pytest.mark.parametrize("part", ["read_source_extent", "narrow_extent"])
@pytest.mark.parametrize("trims", [0, 1, TRIES - 1, TRIES])
def test_what_is_trimmed_meanwhile_is_looked_at_again(monkeypatch: pytest.MonkeyPatch, part: str, trims: int) -> None:
    extents = [SourceExtent({}, {}, number) for number in range(TRIES)]
    read, left = iter(extents), [trims]

    def trimmed(name: str) -> None:
        if name == part and left[0]:
            left[0] -= 1
            raise TrimmedError(LogId("a", "", 0), 6, 297)

    def read_source_extent(*_: object) -> SourceExtent:
        trimmed("read_source_extent")
        return next(read)

    def narrow_extent(_clusters: object, _layout: object, held: SourceExtent, wanted: ResultRange) -> SourceExtent:
        trimmed("narrow_extent")
        assert wanted == EVERYTHING
        return held

    monkeypatch.setattr(history, "read_source_extent", read_source_extent)
    monkeypatch.setattr(history, "narrow_extent", narrow_extent)
    if trims == TRIES:
        with pytest.raises(TrimmedError, match="offset 6"):
            find_range({}, LAYOUT, lambda held: EVERYTHING)
    else:
        held, _ = find_range({}, LAYOUT, lambda held: EVERYTHING)
        assert held is extents[trims if part == "narrow_extent" else 0]
