"""A model of the engine that runs operator hosts in micro-batches: what may come late, twice, or after a loss.

Orders are logged; a batch takes all that there are, obeys them, and writes their answers; then it is committed. A job that
dies comes back and does the same batch again, so answers may come twice; its state is lost with it, and made anew from
snapshots and orders, as `reconcile.remote` says. The order log is trimmed to the older of the two newest snapshots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

from boreal.query.plan import Fragment
from reconcile.events import Answered
from reconcile.orders import Order, Place, decode_answer, encode_order
from reconcile.parts import Parts, in_parts
from reconcile.remote import Fetch, OrderedHost, Unreachable

At = Callable[[int, Callable[[], None]], None]
"""at(delay_us, action): do it after so long."""

SNAPSHOT_BYTES = 5_000
LONG_BATCH_US = 100_000
PART_BYTES = 700
"""How large a record may be, for jobs whose batches are long."""
UPLOAD_US = 5_000
UPLOAD_TRIES = 40
RESTART_US = 20_000
ANSWER_US = 2_000


class MicroBatches:
    """The job of one instance. batch_us: about how long a batch takes; fetch: of the checkpoint store, which `reaches` tells
    whether it can be asked; deliver: hands an answer to the instance."""

    def __init__(
        self,
        fragment: Fragment,
        batch_us: int,
        rng: Random,
        fetch: Fetch,
        reaches: Callable[[], bool],
        at: At,
        deliver: Callable[[Answered], None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.copies: dict[int, bytes] = {}
        self._fragment, self._fetch, self._reaches = fragment, fetch, reaches
        self._batch_us, self._rng, self._at, self._deliver = batch_us, rng, at, deliver
        self._outputs = {edge.operator: edge.schema for edge in fragment.outputs}
        self._orders: list[bytes] = []
        self._start = 0
        self._snapshots: dict[int, bytes] = {}
        self._committed = 0
        self._planned: int | None = None
        self._incarnation = 0
        self._down = 0
        self._is_busy = False
        self._dying: tuple[int, int] | None = None
        self._parts, self._part_bytes = Parts(), PART_BYTES if batch_us > LONG_BATCH_US else 1 << 30
        self._host = self._new_host()

    def _new_host(self) -> OrderedHost:
        return OrderedHost(self._fragment, self._fetch, self, self, SNAPSHOT_BYTES, self._part_bytes)

    def give(self, place: Place, order: Order) -> None:
        """Log an order."""
        self._orders += in_parts(place, encode_order(place, order), self._part_bytes)
        self._maybe_run()

    # What the host reads and keeps

    def read(self, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        for offset in range(max(first, self._start), end):
            yield offset, self._orders[offset]

    def latest(self, offset: int) -> tuple[int, bytes] | None:
        known = [at for at in self._snapshots if at <= offset] if self._reaches() else []
        return (max(known), self._snapshots[max(known)]) if known else None

    def keep(self, offset: int, snapshot: bytes) -> None:
        if not self._reaches():
            return
        self.counts["engine snapshots"] += 1
        self._snapshots[offset] = snapshot
        for old in sorted(self._snapshots)[:-2]:
            del self._snapshots[old]
        if len(self._snapshots) == 2:
            self._start = max(self._start, min(self._snapshots))

    def _keep_copy(self, number: int, state: bytes) -> None:
        incarnation = self._incarnation

        def arrive(tries: int) -> None:
            if incarnation == self._incarnation and self._reaches():
                self.copies[number] = state
            elif incarnation == self._incarnation and tries:
                self._at(UPLOAD_US, lambda: arrive(tries - 1))

        self._at(UPLOAD_US, lambda: arrive(UPLOAD_TRIES))

    # Batches

    def _maybe_run(self) -> None:
        if self._down or self._is_busy or self._committed >= len(self._orders):
            return
        self._is_busy = True
        if self._planned is None:
            self._planned = len(self._orders)
        incarnation = self._incarnation
        self._at(int(self._batch_us * self._rng.uniform(0.5, 1.5)), lambda: self._finish(incarnation))

    def _finish(self, incarnation: int) -> None:
        if incarnation != self._incarnation:
            return
        assert self._planned is not None
        try:
            answers = self._obey(self._host, self._committed, self._planned)
        except Unreachable:
            self.counts["engine batches broken off"] += 1
            self._die(RESTART_US)
            return
        if self._dying is not None:
            (kept, for_us), self._dying = self._dying, None
            self._emit(answers[: len(answers) * kept // 1000])
            self._die(for_us)
            return
        self._emit(answers)
        self._committed, self._planned = self._planned, None
        self._is_busy = False
        self._maybe_run()

    def _obey(self, host: OrderedHost, first: int, end: int) -> list[bytes]:
        before = host.rebuilt
        answers = host.obey(list(self.read(first, end)), self._keep_copy)
        self.counts["engine rebuilds"] += host.rebuilt - before
        return answers

    def _emit(self, answers: list[bytes]) -> None:
        self.counts["engine answers"] += len(answers)
        for data in answers:
            whole = self._parts.take(data)
            if whole is None:
                self.counts["engine parts"] += 1
                continue
            place, answer = decode_answer(whole, self._outputs)
            self._at(ANSWER_US, lambda place=place, answer=answer: self._deliver(Answered(place, answer)))  # type: ignore[misc]

    # What may befall it

    def lose_worker(self) -> None:
        """The process that holds the state dies; the batch under way is not affected, for it has not begun there."""
        self._host = self._new_host()

    def crash(self, kept: int, for_us: int) -> None:
        """The job dies at the end of a batch, when so many per mille of its answers are out and it is not yet committed."""
        self._dying = (kept, for_us)
        if not self._is_busy:
            self._dying = None
            self._die(for_us)

    def forget(self, for_us: int) -> None:
        """The job dies, and its own notes of what it has done are deleted: it begins with the oldest order there is."""
        self._die(for_us)
        self._committed, self._planned = self._start, None

    def lose_snapshots(self) -> None:
        """The store comes back without them."""
        self._snapshots.clear()

    def wipe(self, for_us: int) -> None:
        """The job dies, and its snapshots are gone."""
        self.lose_snapshots()
        self._die(for_us)

    def run_twin(self) -> None:
        """A second job, thought dead, does again what was done and what comes next."""
        first, end = self._start, len(self._orders)
        if first < end:
            with suppress(Unreachable):
                self._emit(self._obey(self._new_host(), first, end))

    def _die(self, for_us: int) -> None:
        self._incarnation += 1
        self._is_busy = False
        self._host = self._new_host()
        self._down += 1
        self._at(for_us, self._rise)

    def _rise(self) -> None:
        self._down -= 1
        self._maybe_run()
