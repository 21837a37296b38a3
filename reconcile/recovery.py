"""Where an instance begins a new life (DPC, 'Failed node recovery'; rulings R25, R26).

It finds its place in its own output log: the last stable boundary's anchor says which inputs to read again, from where,
so that the state at the anchor is rebuilt with its output thrown away. A checkpoint that is newer than the anchor's
inputs spares that; what it makes again is dropped by id.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from boreal.model.frames import Anchor
from sunion.tape import BEGINNING


@dataclass(frozen=True, slots=True)
class Restart:
    """A place to begin. position: input rows from here on are processed; muted_until: output before it is thrown away.

    made: stable ids that the state at `position` has made, by 'stream/partition' of the outputs; written: those that the
    own logs hold, and written_to a time up to which they have all of them; inputs: first ids to read, by 'stream/partition'
    of the inputs; state: a checkpoint's, or empty; checkpoint: whose in the store, and its number. anchored_to: the logs
    have anchors up to this time; opened: by input, the first id that windows still need which are open at `position`, as
    the last of these anchors says: read again only if it has to be.
    """

    incarnation: int
    epoch: int = 0
    position: int = BEGINNING
    muted_until: int = BEGINNING
    made: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)
    state: bytes | None = None
    checkpoint: tuple[str, int] | None = None
    written_to: dict[str, int] = field(default_factory=dict)
    anchored_to: int = BEGINNING
    opened: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint as the store gave it back, already verified. needs: the event time from which inputs are read again. place:
    whose it is, and its number."""

    time: int
    needs: int
    next_ids: tuple[tuple[str, int], ...]
    inputs: tuple[tuple[str, int], ...]
    state: bytes
    place: tuple[str, int]


def plan_restart(
    incarnation: int, epoch: int, written: dict[str, int], anchor: Anchor | None, saved: Saved | None
) -> list[Restart]:
    """The places to begin by an instance's anchor and its newest good checkpoint, the one that leaves less to read again
    first; without an anchor, the beginning is one."""
    places: list[tuple[int, Restart]] = []
    if saved is not None:
        made, inputs = dict(saved.next_ids), dict(saved.inputs)
        place = Restart(incarnation, epoch, saved.time, saved.time, made, written, inputs, saved.state, saved.place)
        opened = dict(anchor.inputs) if anchor is not None else dict.fromkeys(inputs, 0)
        anchored_to = anchor.time if anchor is not None else BEGINNING
        places.append((saved.needs, replace(place, anchored_to=anchored_to, opened=opened)))
    if anchor is not None:
        made, inputs = dict(anchor.next_ids), dict(anchor.inputs)
        places.append((anchor.needs, Restart(incarnation, epoch, anchor.needs, anchor.time, made, written, inputs)))
    else:
        places.append((BEGINNING, Restart(incarnation, epoch, written=written)))
    return [place for _, place in sorted(places, key=lambda place: -place[0])]
