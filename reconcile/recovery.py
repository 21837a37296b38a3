"""Where an instance begins a new life (DPC, 'Failed node recovery'; rulings R25, R26).

It finds its place in its own output log: the last stable boundary's anchor says which inputs to read again, from where,
so that the state at the anchor is rebuilt with its output thrown away. A checkpoint that is newer than the anchor's
inputs spares that; what it makes again is dropped by id.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from boreal.frames import Anchor
from sunion.tape import BEGINNING


@dataclass(frozen=True, slots=True)
class Restart:
    """A place to begin. position: input rows from here on are processed; muted_until: output before it is thrown away.

    made: stable ids that the state at `position` has made, by 'stream/partition' of the outputs; written: those that the
    own logs hold; inputs: first ids to read, by 'stream/partition' of the inputs; state: a checkpoint's, or empty.
    """

    incarnation: int
    epoch: int = 0
    position: int = BEGINNING
    muted_until: int = BEGINNING
    made: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint as the store gave it back, already verified."""

    time: int
    next_ids: tuple[tuple[str, int], ...]
    inputs: tuple[tuple[str, int], ...]
    state: bytes


def plan_restart(incarnation: int, epoch: int, written: dict[str, int], anchor: Anchor | None, saved: Saved | None) -> Restart:
    """Choose between the anchor of the own log and the newest good checkpoint, whichever leaves less to read again."""
    if saved is not None and (anchor is None or saved.time > anchor.needs):
        return Restart(
            incarnation, epoch, saved.time, saved.time, dict(saved.next_ids), written, dict(saved.inputs), saved.state
        )
    if anchor is not None:
        return Restart(incarnation, epoch, anchor.needs, anchor.time, dict(anchor.next_ids), written, dict(anchor.inputs))
    return Restart(incarnation, epoch, written=written)
