"""Which input rows an instance still needs, and which it acknowledges (DPC, 'Failed node recovery'; R19, R26).

A rollback needs the rows since the mark, or since the copy of the state. A restart needs the rows since the last anchor, or
since the last checkpoint that the store has confirmed. The first id of each is noted while the tapes still have it, because
a tape forgets the places of old event times.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from boreal.model.frames import Anchor
from boreal.query.spec import Mode
from operators.graph import FragmentGraph
from reconcile.events import StoreCheckpoint
from reconcile.links import Link
from reconcile.soutput import SOutput
from reconcile.strategy import Strategy
from sunion.tape import BEGINNING

CHECKPOINTS_OF_A_LIFE = 1 << 40
"""More checkpoints than one incarnation ever makes. So a later incarnation has higher checkpoint numbers, and the store can
find the newest checkpoint by its number."""

Inputs = tuple[tuple[str, int], ...]
"""For each input: its key 'stream/partition', and the first id that is needed."""


@dataclass(slots=True)
class Claims:
    """The anchors and checkpoints of one incarnation, and the input rows that they need."""

    links: list[Link]
    """The inputs, with their tapes."""
    graph: FragmentGraph
    """The DAG of the fragment. It says which input a state depends on."""
    strategy: Strategy
    """How rollbacks are carried out."""
    soutput: SOutput
    """The outputs, with their next ids."""
    incarnation: int
    """The number of this incarnation, counted from 1."""
    anchored_to: int = BEGINNING
    """Event time. Up to it the logs have anchors of an earlier incarnation, which are better: that incarnation knew where the
    rows of all open windows begin."""
    in_memory: int | None = None
    """Event time of the last copy of the state; None if there is no copy."""
    made: Anchor | None = None
    """The last anchor."""
    shown: Anchor | None = None
    """The last anchor that readers can see. It is older than `made` while corrections are held back."""
    saved: dict[int, Inputs] = field(default_factory=dict)
    """By checkpoint number: the inputs of the checkpoints whose upload is not confirmed yet."""
    stored: Inputs = ()
    """The inputs of the newest checkpoint in the store."""
    copied: Inputs = ()
    """The inputs of the copy in memory that a rollback returns to; only with periodic checkpoints."""
    checkpoints: int = 0
    """The number of checkpoints that this incarnation has made."""

    def copy(self, time: int) -> None:
        """Note that the state at this event time was copied. Rollbacks return to this copy from now on."""
        self.strategy.copied_at = self.in_memory = time
        if self.strategy.periodic:
            self.copied = self._places(time)
            self._forget_places()

    def next_checkpoint(self) -> int:
        """The number of the next copy that is uploaded to the store."""
        self.checkpoints += 1
        return self.incarnation * CHECKPOINTS_OF_A_LIFE + self.checkpoints

    def anchor(self, time: int, next_ids: Inputs) -> Anchor | None:
        """The anchor of a stable boundary at this event time. None while the logs have better anchors, of an earlier
        incarnation."""
        if time < self.anchored_to:
            return None
        needs = min(self.graph.needs(time), time)
        self.made = Anchor(time, needs, next_ids, self._places(needs))
        if self.soutput.deferred is None:
            self.shown = self.made
        self._forget_places()
        return self.made

    def show(self) -> None:
        """Note that the corrections that were held back, and their anchors, are now in the logs."""
        self.shown = self.made

    def store(self, number: int, time: int, state: bytes | None) -> StoreCheckpoint:
        """The upload of a copy. R19: the copy in memory serves rollbacks at once. The upload runs in the background and
        serves restarts."""
        # An undo rebuilds the state from the rows of open windows. Only an incarnation that has read these rows knows where
        # they begin.
        needs = min(self.graph.needs(time), time) if self.strategy.mode is Mode.UNDO_REDO else time
        self.saved[number] = inputs = self._places(needs)
        return StoreCheckpoint(number, time, needs, self.soutput.next_ids(), inputs, state)

    def note_stored(self, number: int) -> None:
        """Note that a checkpoint is in the store. The inputs before it may be trimmed only from now on, because an upload may
        fail. Older uploads that have not arrived are forgotten, because the newer checkpoint replaces them."""
        self.stored = self.saved.pop(number, self.stored)
        self.saved = {later: inputs for later, inputs in self.saved.items() if later > number}

    def acknowledge(self, has_partners: bool) -> Inputs:
        """The first needed id of each input, to be acknowledged now. From now on the tapes return no place before it. Merged
        notes of a tape reach further back than the notes that they were merged from, and the rows there may be trimmed."""
        inputs = self.acknowledged(has_partners)
        tapes = {link.port.key: link.port.tape for link in self.links}
        for key, first_id in inputs:
            tapes[key].acknowledge(first_id)
        return inputs

    def acknowledged(self, has_partners: bool) -> Inputs:
        """For each input, the smallest id that a rollback or a restart of this instance may still need.

        A state that cannot be rebuilt from windows needs all rows since the last checkpoint in the store. Without partners it
        needs all rows since the beginning: if its checkpoint is lost, no other replica has one.
        """
        if self.graph.unbounded:
            return self.stored if has_partners else ()
        if self.shown is None:
            return ()
        if not self.copied:
            return self.shown.inputs
        copied = dict(self.copied)
        return tuple((key, min(first_id, copied[key])) for key, first_id in self.shown.inputs)

    def _forget_places(self) -> None:
        """Forget the places before the earliest event time that a rollback or a restart may still ask for. Then the first
        place is the one that was claimed, and merging several places into one never reaches back beyond it."""
        times = [self.strategy.copied_at] if self.strategy.periodic else []
        if not self.graph.unbounded:
            if self.made is None:
                return  # the next anchor needs the start of the open windows, and only the places give it
            times.append(self.made.needs)
        for link in self.links:
            link.port.tape.forget_places(min(times, default=BEGINNING))

    def _places(self, time: int) -> Inputs:
        """The first ids to read, to get all rows from an event time on. From `BEGINNING` on this is id 0, even if this
        incarnation has read later rows only."""
        return tuple((link.port.key, 0 if time <= BEGINNING else link.port.tape.place_of(time)) for link in self.links)
