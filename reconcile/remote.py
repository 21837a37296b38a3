"""The operator host in a process of its own: obeys a log of orders, by offset, and answers each (R31).

The log is the truth, and the host's state a function of it, from a BEGIN on; so a process that has lost the state, or has
one that is further than the orders it is given again, makes it anew from the last snapshot and the orders after it, with
their answers thrown away. What it then answers is what it answered before, byte for byte: whoever listens drops repeats
by their number. Where the log no longer reaches back far enough, the host says that it is lost, and a new life begins.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from boreal.model.errors import BorealError, CorruptError
from boreal.query.plan import Fragment
from boreal.query.spec import Mode
from operators.encoding import pack, unpack
from operators.graph import Graph
from reconcile.host import Host
from reconcile.orders import Answer, Begin, Copy, Mark, Order, Place, decode_order, encode_answer
from reconcile.parts import PART_BYTES, Parts, in_parts
from sunion.steps import Step

_KIND = "host"

SNAPSHOT_BYTES = 32 << 20
"""Snapshots are made after so many bytes of orders, or four times the last snapshot where that is more: what they cost is
then at most a quarter of what the orders cost, and what is obeyed again after a loss stays bounded."""


class Unreachable(BorealError):
    """A checkpoint cannot be asked for now: the same order is to be given again."""


class Cause(StrEnum):
    """Why a state was not here, and had to be made anew."""

    NEW = "new worker"
    """This process has had none yet: a job has begun, or a worker or its executor was lost."""
    REPEATED = "orders given again"
    """It was further than the orders: Spark has repeated a batch."""
    MISSED = "orders missed"
    """It was not as far as the orders: those between were obeyed by another worker."""
    BROKEN_OFF = "batch broken off"
    """It was nowhere: the last orders could not be obeyed to the end."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A state was made anew. orders: how many were obeyed again for it, after a snapshot or from the beginning."""

    cause: Cause
    orders: int


class OrderLog(Protocol):
    """The log that the orders come from."""

    def read(self, first: int, end: int) -> Iterable[tuple[int, bytes]]:
        """(offset, order) from the first offset on that is still there, up to `end` (exclusive)."""
        ...


class Snapshots(Protocol):
    """Where a host's whole state is kept, by the offset of the first order that is not in it."""

    def latest(self, offset: int) -> tuple[int, bytes] | None:
        """The last one at an offset or before it; None where there is none, or none can be had."""
        ...

    def keep(self, offset: int, snapshot: bytes) -> None:
        """Keep one; it may arrive later, or never."""
        ...


Fetch = Callable[[str, int], bytes]
"""fetch(owner, number): the state of a stored checkpoint; KeyError where there is none (any more), CorruptError where it is
damaged, Unreachable where the store does not answer."""

KeepCopy = Callable[[int, bytes], None]
"""keep(number, state): bring a copy of the state to the store; it may arrive later, or never (R19)."""


class RemoteHost:
    """A host that is told its orders as bytes. place: the last order that it obeyed; life 0 is none at all. rows: how many
    steps have brought."""

    def __init__(self, fragment: Fragment, fetch: Fetch) -> None:
        self.host = Host(Graph(fragment), Mode.OVERLAY_REDO)
        self.place = Place(0, 0)
        self.has_failed = False
        self.rows = 0
        self._parts = Parts()
        self._inputs = {entry.name: entry.schema for entry in fragment.inputs}
        self._fetch = fetch

    def take(self, data: bytes, keep: KeepCopy | None) -> bytes | None:
        """Obey an order; the answer as bytes, or None for an order that was obeyed before, is of a life that is over, or is not
        whole yet. keep: None where copies need not go to the store, having gone there before."""
        whole = self._parts.take(data)
        return self._take_whole(whole, keep) if whole is not None else None

    def _take_whole(self, data: bytes, keep: KeepCopy | None) -> bytes | None:
        place, order = decode_order(data, self._inputs)
        mine = self.place
        if place.incarnation < mine.incarnation or (place.incarnation == mine.incarnation and place.number <= mine.number):
            return None
        begins = isinstance(order, Begin) and place.incarnation > mine.incarnation
        if isinstance(order, Step):
            self.rows += sum(batch.num_rows for batch in order.batches.values())
        if begins or (place == Place(mine.incarnation, mine.number + 1) and not self.has_failed):
            answer = self._obey(order)
        else:
            answer = Answer(failed=f"the state before order {place.number} of life {place.incarnation} is lost")
        self.place = place
        self.has_failed = answer.failed is not None
        if isinstance(order, Copy | Mark) and order.number is not None and answer.state is not None and keep is not None:
            keep(order.number, answer.state)
        return encode_answer(place, answer)

    def save(self) -> bytes | None:
        """All that the next orders build on, as bytes; None while that is more than one state, or nothing, or an order in parts
        is not whole yet."""
        host = self.host
        if host.live is not None or host.redo is not None or self.has_failed or not self.place.incarnation:
            return None
        if self._parts.place > self.place:
            return None
        place = self.place
        facts: dict[str, object] = {"life": place.incarnation, "place": place.number, "mode": host.mode.value}
        return pack(_KIND, facts, [host.state.encode(), host.copy])

    def restore(self, snapshot: bytes) -> None:
        """Be what `save` saved; CorruptError if the bytes are no snapshot of this fragment's host."""
        facts, (state, copy) = unpack(snapshot, _KIND)
        self.host.begin(state)
        self.host.copy, self.host.mode = copy, Mode(str(facts["mode"]))
        self.place = Place(int(facts["life"]), int(facts["place"]))  # type: ignore[call-overload]
        self.has_failed = False

    def _obey(self, order: Order) -> Answer:
        """What an operator raises is told to whoever gave the order, as text: it ends that life, and not this process."""
        try:
            if isinstance(order, Begin) and order.checkpoint:
                order = replace(order, state=self._fetch(*order.checkpoint))
            return self.host.obey(order)
        except Unreachable:
            raise
        except Exception:
            return Answer(failed=traceback.format_exc())


class OrderedHost:
    """A `RemoteHost` at a place in its log of orders. rebuilt: how often its state was made anew; rows: how many it was given,
    without those that it was given again for that."""

    def __init__(
        self,
        fragment: Fragment,
        fetch: Fetch,
        log: OrderLog,
        snapshots: Snapshots,
        snapshot_bytes: int = SNAPSHOT_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.fragment = fragment
        self.host = RemoteHost(fragment, fetch)
        self.next_offset: int | None = None
        self.rebuilt = 0
        self.rows = 0
        self._fetch = fetch
        self._log = log
        self._snapshots = snapshots
        self._snapshot_bytes = snapshot_bytes
        self._part_bytes = part_bytes
        self._since = self._last_size = 0

    def obey(self, orders: Sequence[tuple[int, bytes]], keep: KeepCopy) -> list[bytes]:
        """Obey (offset, order) in their order; the records of the answers (reconcile.parts). What was obeyed before is obeyed
        again, and answered alike."""
        if not orders:
            return []
        self.seek(orders[0][0])
        self.next_offset = None  # where the store cannot be asked in the midst of it, we are nowhere
        rows = self.host.rows
        answers: list[bytes] = []
        # One for each batch, at the first place that has one: early answers leave such places only between a ROLLBACK and the
        # next MARK. A batch that is done again begins no earlier than the snapshot before.
        has_saved = False
        for offset, data in orders:
            answers += self._answer(data, keep)
            self._since += len(data)
            has_saved = has_saved or self._maybe_save(offset + 1)
        self.rows += self.host.rows - rows
        self.next_offset = orders[-1][0] + 1
        return answers

    def _answer(self, data: bytes, keep: KeepCopy) -> list[bytes]:
        answer = self.host.take(data, keep)
        return in_parts(self.host.place, answer, self._part_bytes) if answer is not None else []

    def skip(self, offset: int) -> None:
        """Pass over what is no order: the state is then the one before the next offset."""
        self.seek(offset)
        self.next_offset = offset + 1

    def seek(self, offset: int) -> Rebuild | None:
        """Have the state that the orders before an offset have left; None where it is here."""
        if self.next_offset == offset:
            return None
        cause = self._cause(offset)
        self.rebuilt += 1
        self.next_offset = None
        orders = self._rebuild(offset)
        self.next_offset = offset
        return Rebuild(cause, orders)

    def _rebuild(self, offset: int) -> int:
        """Make the state anew; how many orders were obeyed for it."""
        self.host = RemoteHost(self.fragment, self._fetch)
        self._since = self._last_size = 0
        orders = 0
        for _, data in self._log.read(self._restored(offset), offset):
            self.host.take(data, None)
            # They count as any: a process that never lives to obey SNAPSHOT_BYTES would leave no snapshot, and all to the next.
            self._since += len(data)
            orders += 1
        return orders

    def _cause(self, offset: int) -> Cause:
        if self.next_offset is None:
            return Cause.BROKEN_OFF if self.rebuilt else Cause.NEW
        return Cause.REPEATED if offset < self.next_offset else Cause.MISSED

    def _restored(self, offset: int) -> int:
        """Begin with the last snapshot that can be used; the offset of the first order that is not in it."""
        found = self._snapshots.latest(offset)
        if found is None:
            return 0
        try:
            self.host.restore(found[1])
        except CorruptError:
            return 0  # of another query under the same name: the log tells all that there is to know
        self._last_size = len(found[1])
        return found[0]

    def _maybe_save(self, next_offset: int) -> bool:
        if self._since < max(self._snapshot_bytes, 4 * self._last_size):
            return False
        snapshot = self.host.save()
        if snapshot is None:
            return False
        self._snapshots.keep(next_offset, snapshot)
        self._since, self._last_size = 0, len(snapshot)
        return True
