"""What an instance still needs of its inputs, and what it therefore acknowledges (DPC, 'Failed node recovery'; R19, R26).

A rollback wants the rows since the mark, or since the copy of the state; a restart wants those since the last anchor, or
since the last checkpoint that has safely arrived. Each place is noted while the tapes still know it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from boreal.model.frames import Anchor
from boreal.query.spec import Mode
from operators.graph import Graph
from reconcile.events import StoreCheckpoint
from reconcile.links import Link
from reconcile.soutput import SOutput
from reconcile.strategy import Strategy
from sunion.tape import BEGINNING

CHECKPOINTS_OF_A_LIFE = 1 << 40
"""More than one ever makes: a later life's checkpoints have higher numbers, by which the store knows the newest."""

Inputs = tuple[tuple[str, int], ...]
"""Per input, 'stream/partition' and the first id that is needed."""


@dataclass(slots=True)
class Claims:
    """The anchors and checkpoints of one life. made: the last anchor; shown: the last one that readers could see, corrections
    being held back at times. saved: the inputs of the checkpoints on their way to the store; stored: of the last that
    arrived; copied: of the copy in memory that periodic checkpoints roll back to. in_memory: the input time of the last copy,
    if there is one. anchored_to: the logs have better anchors up to this time, of a life before, which knew where the rows of
    all windows begin."""

    links: list[Link]
    graph: Graph
    strategy: Strategy
    soutput: SOutput
    incarnation: int
    anchored_to: int = BEGINNING
    in_memory: int | None = None
    made: Anchor | None = None
    shown: Anchor | None = None
    saved: dict[int, Inputs] = field(default_factory=dict)
    stored: Inputs = ()
    copied: Inputs = ()
    checkpoints: int = 0

    def copy(self, time: int) -> None:
        """The state at a time is copied, as what rollbacks return to from now on."""
        self.strategy.copied_at = self.in_memory = time
        if self.strategy.periodic:
            self.copied = self._places(time)
            self._forget_places()

    def next_checkpoint(self) -> int:
        """The number of the next copy that goes to the store."""
        self.checkpoints += 1
        return self.incarnation * CHECKPOINTS_OF_A_LIFE + self.checkpoints

    def anchor(self, time: int, next_ids: Inputs) -> Anchor | None:
        """The anchor of a stable boundary at this time."""
        if time < self.anchored_to:
            return None
        needs = min(self.graph.needs(time), time)
        self.made = Anchor(time, needs, next_ids, self._places(needs))
        if self.soutput.deferred is None:
            self.shown = self.made
        self._forget_places()
        return self.made

    def show(self) -> None:
        """Corrections that were held back, and their anchors, are now in the logs."""
        self.shown = self.made

    def store(self, number: int, time: int, state: bytes | None) -> StoreCheckpoint:
        """R19: the copy in memory serves a rollback; the upload goes on behind, and serves restarts."""
        # An undo makes the state anew from the rows of open windows, whose places are known only to who has read them.
        needs = min(self.graph.needs(time), time) if self.strategy.mode is Mode.UNDO_REDO else time
        self.saved[number] = inputs = self._places(needs)
        return StoreCheckpoint(number, time, needs, self.soutput.next_ids(), inputs, state)

    def note_stored(self, number: int) -> None:
        """Only now may the inputs before it be let go. An older upload that never arrived serves nothing any more."""
        self.stored = self.saved.pop(number, self.stored)
        self.saved = {later: inputs for later, inputs in self.saved.items() if later > number}

    def acknowledge(self, has_partners: bool) -> Inputs:
        """What is to be acknowledged now. From here on the tapes name no place before it: notes that were made one reach
        further back than what they were made of, and those rows may be gone."""
        inputs = self.acknowledged(has_partners)
        tapes = {link.port.key: link.port.tape for link in self.links}
        for key, first_id in inputs:
            tapes[key].acknowledge(first_id)
        return inputs

    def acknowledged(self, has_partners: bool) -> Inputs:
        """The smallest of what a rollback and a restart of ours may still need. A state that cannot be rebuilt from windows
        needs all since its last safe checkpoint; and where no partner has another, since the beginning."""
        if self.graph.unbounded:
            return self.stored if has_partners else ()
        if self.shown is None:
            return ()
        if not self.copied:
            return self.shown.inputs
        copied = dict(self.copied)
        return tuple((key, min(first_id, copied[key])) for key, first_id in self.shown.inputs)

    def _forget_places(self) -> None:
        """Forget the places before the earliest time that a rollback or a restart may still ask for. So the first place is the
        one that was claimed, and to make several places one never leads back beyond it."""
        times = [self.strategy.copied_at] if self.strategy.periodic else []
        if not self.graph.unbounded:
            if self.made is None:
                return  # where the windows begin that an anchor will need, only the places tell
            times.append(self.made.needs)
        for link in self.links:
            link.port.tape.forget_places(min(times, default=BEGINNING))

    def _places(self, time: int) -> Inputs:
        """The first ids to read for all rows from a time on; the very first where the time is the beginning, whatever this
        life has seen of it."""
        return tuple((link.port.key, 0 if time <= BEGINNING else link.port.tape.place_of(time)) for link in self.links)
