"""The operator host in a separate process. It executes a log of orders, by offset, and answers each order (R31).

The state of the host is a function of the log, from a BEGIN on. So a process rebuilds the state if it has lost it, or if its
state is newer than the orders that it is given. It restores the last snapshot and executes the orders after it, without
sending their answers. Its later answers then equal the earlier ones, byte for byte, and the receiver drops repeated answers by
their number. If the log no longer reaches back far enough, the host answers that its state is lost, and a new incarnation
begins.
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
from operators.graph import FragmentGraph
from reconcile.host import Host
from reconcile.orders import Answer, Begin, Copy, Order, Place, SetMark, decode_order, encode_answer
from reconcile.parts import PART_BYTES, Parts, in_parts
from sunion.steps import Step

_KIND = "host"

SNAPSHOT_BYTES = 32 << 20
"""A snapshot is made after this many bytes of orders, or after four times the size of the last snapshot if that is more. So
snapshots cost at most a quarter of what the orders cost, and the number of orders to repeat after a loss stays bounded."""


class Unreachable(BorealError):
    """The checkpoint store does not answer now. The same order must be given again."""


class Cause(StrEnum):
    """Why a state had to be rebuilt."""

    NEW = "new worker"
    """This process had no state yet: a job has begun, or a worker or its executor was lost."""
    REPEATED = "orders given again"
    """The state was newer than the orders: Spark has repeated a batch."""
    MISSED = "orders missed"
    """The state was older than the orders: another worker has executed the orders between."""
    BROKEN_OFF = "batch broken off"
    """The state was at no known offset: the last orders were not executed to the end."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A state was rebuilt."""

    cause: Cause
    """Why it was rebuilt."""
    orders: int
    """How many orders were executed for it, after the snapshot or from the beginning of the log."""


class OrderLog(Protocol):
    """The log of the orders."""

    def read(self, first: int, end: int) -> Iterable[tuple[int, bytes]]:
        """(offset, order) from `first` on, or from the first offset that the log still has, up to `end` (exclusive)."""
        ...


class Snapshots(Protocol):
    """A store for snapshots: the whole state of a host, by the offset of the first order that is not in it."""

    def latest(self, offset: int) -> tuple[int, bytes] | None:
        """(offset, snapshot): the last one at this offset or before it. None if there is none, or the store is unavailable."""
        ...

    def keep(self, offset: int, snapshot: bytes) -> None:
        """Store a snapshot. It may arrive later, or never."""
        ...


Fetch = Callable[[str, int], bytes]
"""fetch(owner, number): the state of a stored checkpoint. KeyError if there is none or it was deleted, CorruptError if it is
damaged, Unreachable if the store does not answer."""

KeepCopy = Callable[[int, bytes], None]
"""keep(number, state): upload a copy of the state to the store. It may arrive later, or never (R19)."""


class RemoteHost:
    """A host that takes orders as bytes.

    `place` is the place of the last order that it executed; incarnation 0 if there was none. `rows` counts the input rows of
    all steps. `has_failed`: the last order failed, so only a new incarnation can follow.
    """

    def __init__(self, fragment: Fragment, fetch: Fetch) -> None:
        self.host = Host(FragmentGraph(fragment), Mode.OVERLAY_REDO)
        self.place = Place(0, 0)
        self.has_failed = False
        self.rows = 0
        self._parts = Parts()
        self._inputs = {entry.name: entry.schema for entry in fragment.inputs}
        self._fetch = fetch

    def take(self, data: bytes, keep: KeepCopy | None) -> bytes | None:
        """Execute an order, and return the answer as bytes.

        None if the order was executed before, is of an earlier incarnation, or is not complete yet. `keep` uploads copies of
        the state; None if they were uploaded before.
        """
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
            answer = Answer(failed=f"the state before order {place.number} of incarnation {place.incarnation} is lost")
        self.place = place
        self.has_failed = answer.failed is not None
        if isinstance(order, Copy | SetMark) and order.number is not None and answer.state is not None and keep is not None:
            keep(order.number, answer.state)
        return encode_answer(place, answer)

    def save(self) -> bytes | None:
        """A snapshot of all that the next orders depend on, as bytes.

        None while there is no state, the last order failed, there is more than one state (a live branch, a correction beside
        it), or an order in parts is not complete yet.
        """
        host = self.host
        if host.live is not None or host.redo is not None or self.has_failed or not self.place.incarnation:
            return None
        if self._parts.place > self.place:
            return None
        place = self.place
        facts: dict[str, object] = {"life": place.incarnation, "place": place.number, "mode": host.mode.value}
        return pack(_KIND, facts, [host.state.encode(), host.copy])

    def restore(self, snapshot: bytes) -> None:
        """Restore what `save` returned. CorruptError if the bytes are not a snapshot of this fragment's host."""
        facts, (state, copy) = unpack(snapshot, _KIND)
        self.host.begin(state)
        self.host.copy, self.host.mode = copy, Mode(str(facts["mode"]))
        self.place = Place(int(facts["life"]), int(facts["place"]))  # type: ignore[call-overload]
        self.has_failed = False

    def _obey(self, order: Order) -> Answer:
        """Execute an order. An error of an operator becomes the text of the answer, because it must end the incarnation that
        gave the order, and not this process."""
        try:
            if isinstance(order, Begin) and order.checkpoint:
                order = replace(order, state=self._fetch(*order.checkpoint))
            return self.host.obey(order)
        except Unreachable:
            raise
        except Exception:
            return Answer(failed=traceback.format_exc())


class OrderedHost:
    """A `RemoteHost` at an offset of its log of orders.

    `next_offset` is the offset of the next order that its state can take; None if the state is at no known offset. `rebuilt`
    counts the rebuilds of the state. `rows` counts the input rows of all orders, without those repeated for rebuilds.
    """

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
        """Execute orders, given as (offset, order) in rising order, and return the records of the answers (reconcile.parts).
        Orders that were executed before are executed again, with the same answers."""
        if not orders:
            return []
        self.seek(orders[0][0])
        self.next_offset = None  # until all orders are done: an unreachable store leaves the state at no known offset
        rows = self.host.rows
        answers: list[bytes] = []
        # At most one snapshot for each batch, at the first offset where one is possible. During early answers this is only
        # between a ROLLBACK and the next MARK. A repeated batch begins no earlier than the snapshot before it.
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
        """Skip a record that is not an order. The state is then the one before the next offset."""
        self.seek(offset)
        self.next_offset = offset + 1

    def seek(self, offset: int) -> Rebuild | None:
        """Move to the state that the orders before this offset have left. Returns the rebuild, or None if none was needed."""
        if self.next_offset == offset:
            return None
        cause = self._cause(offset)
        self.rebuilt += 1
        self.next_offset = None
        orders = self._rebuild(offset)
        self.next_offset = offset
        return Rebuild(cause, orders)

    def _rebuild(self, offset: int) -> int:
        """Rebuild the state before an offset. Returns the number of orders that were executed for it."""
        self.host = RemoteHost(self.fragment, self._fetch)
        self._since = self._last_size = 0
        orders = 0
        for _, data in self._log.read(self._restored(offset), offset):
            self.host.take(data, None)
            # Repeated orders count for the next snapshot, too. Otherwise processes that each end before SNAPSHOT_BYTES of new
            # orders would never make a snapshot, and each next process would have more orders to repeat.
            self._since += len(data)
            orders += 1
        return orders

    def _cause(self, offset: int) -> Cause:
        if self.next_offset is None:
            return Cause.BROKEN_OFF if self.rebuilt else Cause.NEW
        return Cause.REPEATED if offset < self.next_offset else Cause.MISSED

    def _restored(self, offset: int) -> int:
        """Restore the last usable snapshot. Returns the offset of the first order that is not in it; 0 without a snapshot."""
        found = self._snapshots.latest(offset)
        if found is None:
            return 0
        try:
            self.host.restore(found[1])
        except CorruptError:
            return 0  # of another query with the same name: the log alone is enough for the rebuild
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
