"""The lines of a story: what a place tells several times running is one line, at the time of the first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from boreal.model.frames import INFINITY
from sunion.tape import BEGINNING

BURST_US = 5_000
"""What a place tells again so soon is one telling."""


@dataclass(slots=True)
class Telling:
    """What a place tells: `words`, with {rows}, {upto} or {items} filled in. times: how often; more: the same again, a while
    later."""

    at: int
    place: str
    words: str
    rows: int
    upto: int
    items: list[str]
    times: int = 1
    more: Telling | None = None

    def maybe_add(self, other: Telling) -> bool:
        """Take in what is told next at this place, if it is the same."""
        if "{" not in self.words or self.words != other.words:
            return False
        if other.at - self.at <= BURST_US:
            self._add(other)
        elif "{items}" in self.words:
            return False
        elif self.more is None:
            self.more = other
        else:
            self.more._add(other)
            self.more.at = other.at
        return True

    def _add(self, other: Telling) -> None:
        self.rows += other.rows
        self.upto = max(self.upto, other.upto)
        self.items += other.items
        self.times += 1

    def line(self) -> str:
        text = self.words.format(rows=rows_of(self.rows), upto=seconds(self.upto), items=", ".join(self.items))
        if self.more is not None:
            text += f"; {self.more.rest()}"
        return f"{seconds(self.at):>7} s  {self.place:<9}  {text}"

    def rest(self) -> str:
        """In short, for what was told before."""
        count = f"{self.rows} more" if self.rows else f"{self.times} times more, with no rows,"
        return f"{count} up to {seconds(self.upto)} until {seconds(self.at)} s"


class Story:
    """Lines by time. observe: the places that are told of, besides the faults; since: what comes before is left out."""

    def __init__(self, observe: frozenset[str], since: int = 0) -> None:
        self._observe = observe | {"fault", "heals"}
        self.since = since
        self._tellings: list[Telling] = []
        self._last: dict[str, Telling] = {}

    def tell(self, at: int, place: str, words: str, rows: int = 0, upto: int = BEGINNING, item: str = "") -> None:
        if place not in self._observe or at < self.since:
            return
        telling, last = Telling(at, place, words, rows, upto, [item]), self._last.get(place)
        if last is None or not last.maybe_add(telling):
            self._last[place] = telling
            self._tellings.append(telling)

    def lines(self) -> Iterator[str]:
        for telling in sorted(self._tellings, key=lambda telling: telling.at):
            yield telling.line()


def rows_of(count: int) -> str:
    """So many rows."""
    return f"{count or 'no'} {'row' if count == 1 else 'rows'}"


def seconds(time: int) -> str:
    """Seconds of run time or of event time, which begin together."""
    if abs(time) >= INFINITY:
        return "the end" if time > 0 else "the beginning"
    return f"{time // 1000 / 1000:.3f}"
