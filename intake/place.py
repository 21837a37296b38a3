"""The position of a source: which records of the user's topic are in its logs, and which boundary it has written.

Before the rows of a batch, a source logs a stable boundary whose anchor announces the batch. The anchor's `inputs` hold, for
each partition P of the user's topic T that ever held a record:

    T/P          the offset where the batch begins: all records before it have been processed
    T/P/until    the offset where the batch ends; absent if it has no record of this partition
    T/P/floor    the floor of this partition before the batch; absent if there is none
    T/P/posted   the number of the last record that was posted through this source (services.source.post_box); absent if none

and for the whole topic:

    T//newest    the newest accepted time; absent if there is none
    T//clock     the source's clock, which decides what is too far ahead; absent in logs of sources that accepted every time
    T//ahead     how far beyond it rows are believed; absent, as the next two, in logs of versions whose rules never changed
    T//clamps    1 if late rows get a later time
    T//strict    1 if values must have their columns' types
    T//fills     1 if columns that a record's schema lacks are null; absent if its records are refused
    T//unknown/N absent, or 1 if the registry did not know the schema N, so that its records are refused

`next_ids` is the id of the batch's first row in each of the stream's logs. `time` is the boundary that decides which rows are
late. So the announcement and the user's topic determine completely which rows a batch becomes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from boreal.model.frames import INFINITY, Anchor
from sunion.tape import BEGINNING

NOT_POSTED = -1


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """The position in one partition of the user's topic."""

    next_offset: int = 0
    """Offset of the first record that is not yet taken."""
    floor: int = BEGINNING
    """Event time (us): no later row of this partition is accepted with a smaller time."""
    posted: int = NOT_POSTED
    """Number of the last taken record that was posted through a source; NOT_POSTED if none."""


@dataclass(frozen=True, slots=True)
class IntakeRules:
    """What of a stream's specification decides which records become rows, and may change while the query runs."""

    ahead: int
    """How far beyond the clock and the stream a row is believed (us)."""
    clamps: bool
    """Whether late rows get a later time."""
    strict: bool
    """Whether values must have their columns' types."""
    fills: bool = False
    """Whether columns that the schema of a record lacks are null in it."""


@dataclass(slots=True)
class SourcePlace:
    """The position of a source in the user's topic and in its own logs."""

    next_ids: dict[str, int]
    """Id of the next row, by the log's 'stream/partition'."""
    partitions: dict[int, PartitionPlace] = field(default_factory=dict)
    """Position by partition, for the partitions that ever held a record."""
    promise: int = BEGINNING
    """The highest boundary that any of the logs may hold, as event time (us)."""
    newest: int = BEGINNING
    """The newest accepted event time (us)."""
    clock: int = INFINITY
    """The source's clock (us) when the batch was announced; INFINITY if every time is accepted."""
    rules: IntakeRules | None = None
    """The rules when the batch was announced; None if they are not known, and have not changed."""
    unknown: frozenset[int] = frozenset()
    """The ids of schemas that the registry did not know when the batch was announced: it may know them later."""

    def announce(self, topic: str, until: Mapping[int, int]) -> Anchor:
        """The anchor that announces the next batch. until: the offset where the batch ends, by partition."""
        inputs: list[tuple[str, int]] = []
        for number, partition in sorted(self.partitions.items()):
            key = f"{topic}/{number}"
            inputs.append((key, partition.next_offset))
            if number in until:
                inputs.append((f"{key}/until", until[number]))
            if partition.floor > BEGINNING:
                inputs.append((f"{key}/floor", partition.floor))
            if partition.posted > NOT_POSTED:
                inputs.append((f"{key}/posted", partition.posted))
        if self.newest > BEGINNING:
            inputs.append((f"{topic}//newest", self.newest))
        if self.clock < INFINITY:
            inputs.append((f"{topic}//clock", self.clock))
        if self.rules is not None:
            inputs.append((f"{topic}//ahead", self.rules.ahead))
            inputs.append((f"{topic}//clamps", int(self.rules.clamps)))
            inputs.append((f"{topic}//strict", int(self.rules.strict)))
            if self.rules.fills:
                inputs.append((f"{topic}//fills", 1))
        inputs += [(f"{topic}//unknown/{schema}", 1) for schema in sorted(self.unknown)]
        return Anchor(self.promise, self.promise, tuple(sorted(self.next_ids.items())), tuple(inputs))


def read_announcement(anchor: Anchor, topic: str) -> tuple[SourcePlace, dict[int, int]]:
    """The position before the batch that an anchor of `SourcePlace.announce` announces, and the offset by partition where the
    batch ends."""
    place = SourcePlace(dict(anchor.next_ids), {}, anchor.time)
    until: dict[int, int] = {}
    rules = {key: value for key, value in anchor.inputs if key.startswith(f"{topic}//")}
    if f"{topic}//ahead" in rules:
        ahead, clamps, strict = (rules[f"{topic}//{name}"] for name in ("ahead", "clamps", "strict"))
        place.rules = IntakeRules(ahead, bool(clamps), bool(strict), f"{topic}//fills" in rules)
    for key, value in anchor.inputs:
        name, number, *what = key.split("/")
        if name != topic:
            continue
        if not number:
            if what == ["newest"]:
                place.newest = value
            elif what == ["clock"]:
                place.clock = value
            elif what[:1] == ["unknown"]:
                place.unknown |= {int(what[1])}
            continue
        known = place.partitions.setdefault(int(number), PartitionPlace())
        match what:
            case []:
                place.partitions[int(number)] = replace(known, next_offset=value)
            case ["until"]:
                until[int(number)] = value
            case ["floor"]:
                place.partitions[int(number)] = replace(known, floor=value)
            case ["posted"]:
                place.partitions[int(number)] = replace(known, posted=value)
    return place, until


def announcement_rank(anchor: Anchor) -> tuple[int, int, int]:
    """Sorts the announcements of a stream by age, the oldest first, whichever log holds them."""
    inputs = dict(anchor.inputs)
    ends = [inputs.get(f"{key}/until", value) for key, value in anchor.inputs if key.count("/") == 1]
    return sum(next_id for _, next_id in anchor.next_ids), anchor.time, sum(ends)
