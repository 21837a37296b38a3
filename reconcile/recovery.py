"""Where an instance begins a new incarnation (DPC, 'Failed node recovery'; rulings R25, R26).

The place is in its own output log. The anchor of the last stable boundary says from which id each input must be read again, to
rebuild the state at the anchor with its output suppressed. A checkpoint that is newer than these inputs makes the rebuild
unnecessary. The output that is made again from the checkpoint on is dropped by id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from boreal.model.frames import Anchor
from sunion.tape import BEGINNING


@dataclass(frozen=True, slots=True)
class Restart:
    """A place where an incarnation may begin. Positions and times are event times, in microseconds. Dictionaries are keyed by
    'stream/partition'."""

    incarnation: int
    """The number of the new incarnation, counted from 1."""
    epoch: int = 0
    """The last epoch in the own logs."""
    position: int = BEGINNING
    """Input rows from this time on are processed."""
    muted_until: int = BEGINNING
    """Output before this time is suppressed."""
    made: dict[str, int] = field(default_factory=dict)
    """For each output, the next stable id of the state at `position`."""
    written: dict[str, int] = field(default_factory=dict)
    """For each output, the next stable id of the own log."""
    inputs: dict[str, int] = field(default_factory=dict)
    """For each input, the first id to read."""
    state: bytes | None = None
    """The state of a checkpoint, encoded; None for the empty state."""
    checkpoint: tuple[str, int] | None = None
    """The owner and the number of this checkpoint in the store; None without one."""
    written_to: dict[str, int] = field(default_factory=dict)
    """For each output, a time up to which the own log has all stable rows."""
    anchored_to: int = BEGINNING
    """The own logs have anchors up to this time."""
    opened: dict[str, int] = field(default_factory=dict)
    """For each input, the first id that the windows open at `position` still need, by the last anchor. These rows are read
    again only if necessary."""


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """A checkpoint from the store, already verified. Times are event times, in microseconds."""

    time: int
    """The state contains all input rows before this time."""
    needs: int
    """Inputs are read again from this time on."""
    next_ids: tuple[tuple[str, int], ...]
    """For each output: 'stream/partition', and the next stable id of the state."""
    inputs: tuple[tuple[str, int], ...]
    """For each input: 'stream/partition', and the first id to read."""
    state: bytes
    """The encoded state."""
    place: tuple[str, int]
    """The owner and the number of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where the first incarnation of an instance begins, and a later one that finds nothing better."""

    first_ids: Mapping[str, int] = field(default_factory=dict)
    """For each input, by 'stream/partition', the id of its first row, where that is not 0."""
    needs_state: bool = False
    """Whether it begins with the state of another instance, without which the rows are not enough."""
    carried: VerifiedCheckpoint | None = None
    """This state. It has made no row yet. None: there is none; or it is not needed, since a checkpoint is there; or it cannot
    be read."""


FROM_THE_FIRST = Beginning()
"""With the first row of each input, and the empty state."""


def plan_restart(
    incarnation: int,
    epoch: int,
    written: dict[str, int],
    anchor: Anchor | None,
    saved: VerifiedCheckpoint | None,
    beginning: Beginning = FROM_THE_FIRST,
) -> list[Restart]:
    """The places where an instance may begin: by its anchor, and by its newest valid checkpoint.

    The place that leaves less input to read again comes first. Without an anchor, the beginning of the inputs is a place.
    `written` has the next stable id of each own log; `epoch` is the last one in the logs.
    """
    places: list[tuple[int, Restart]] = []
    if saved is not None:
        made, inputs = dict(saved.next_ids), dict(saved.inputs)
        place = Restart(incarnation, epoch, saved.time, saved.time, made, written, inputs, saved.state, saved.place)
        opened = dict(anchor.inputs) if anchor is not None else {key: beginning.first_ids.get(key, 0) for key in inputs}
        anchored_to = anchor.time if anchor is not None else BEGINNING
        places.append((saved.needs, replace(place, anchored_to=anchored_to, opened=opened)))
    if anchor is not None:
        made, inputs = dict(anchor.next_ids), dict(anchor.inputs)
        places.append((anchor.needs, Restart(incarnation, epoch, anchor.needs, anchor.time, made, written, inputs)))
    carried = beginning.carried
    if carried is not None:
        inputs = dict(carried.inputs)
        place = Restart(incarnation, epoch, carried.time, carried.time, {}, written, inputs, carried.state, carried.place)
        places.append((carried.time, place))
    elif anchor is None and not beginning.needs_state:
        places.append((BEGINNING, Restart(incarnation, epoch, written=written, inputs=dict(beginning.first_ids))))
    return [place for _, place in sorted(places, key=lambda place: -place[0])]
