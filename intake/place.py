"""Where a source is: what of the user's topic is in its logs, and what it has promised.

Before the rows of a batch a source logs a stable boundary whose anchor announces them. `inputs` of that anchor, for each
partition P of the user's topic T that ever held a record:

    T/P          the offset at which the batch begins: the records before it have had their effect
    T/P/until    the offset at which it ends; absent where it takes no record of this partition
    T/P/floor    the boundary of this partition before the batch; absent where there is none
    T/P/posted   the number of the last record that was posted by way of this source (services.source.post_box); absent if none

and for the topic as a whole:

    T//newest    the newest time that was believed; absent where there is none
    T//clock     the source's clock, by which it is judged what is ahead; absent in logs of sources that believed every time

`next_ids` is the id of the batch's first row in each of the stream's logs, and `time` the promise by which it is judged
which rows are late. All that decides what rows a batch becomes is in its announcement and in the user's topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from boreal.model.frames import INFINITY, Anchor
from sunion.tape import BEGINNING

NOT_POSTED = -1


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of the user's topic. next_offset: of the first record not yet taken. floor: no later row here is
    accepted with a smaller time. posted: the number of the last record taken that was posted by way of a source."""

    next_offset: int = 0
    floor: int = BEGINNING
    posted: int = NOT_POSTED


@dataclass(slots=True)
class Place:
    """partitions: those that ever held a record. next_ids: by the log's 'stream/partition'. promise: the highest boundary
    that any of the logs may hold. newest: the newest time that was believed. clock: the source's, when the batch was
    announced; INFINITY where every time is believed."""

    next_ids: dict[str, int]
    partitions: dict[int, Partition] = field(default_factory=dict)
    promise: int = BEGINNING
    newest: int = BEGINNING
    clock: int = INFINITY

    def announce(self, topic: str, until: Mapping[int, int]) -> Anchor:
        """The anchor that announces a batch from here, of the records up to `until` of each partition that it takes."""
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
        return Anchor(self.promise, self.promise, tuple(sorted(self.next_ids.items())), tuple(inputs))


def announced(anchor: Anchor, topic: str) -> tuple[Place, dict[int, int]]:
    """The place before the batch that an anchor of `Place.announce` announces, and where the batch ends."""
    place = Place(dict(anchor.next_ids), {}, anchor.time)
    until: dict[int, int] = {}
    for key, value in anchor.inputs:
        name, number, *what = key.split("/")
        if name != topic:
            continue
        if not number:
            if what == ["newest"]:
                place.newest = value
            elif what == ["clock"]:
                place.clock = value
            continue
        known = place.partitions.setdefault(int(number), Partition())
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


def progress(anchor: Anchor) -> tuple[int, int, int]:
    """Grows with each announcement of a stream, in whichever of its logs it is found."""
    inputs = dict(anchor.inputs)
    ends = [inputs.get(f"{key}/until", value) for key, value in anchor.inputs if key.count("/") == 1]
    return sum(next_id for _, next_id in anchor.next_ids), anchor.time, sum(ends)
