"""q.stable: the stable rows only, each once for read_committed readers (R28).

A row goes to q.stable when q.out surely has it, in short transactions, in a thread of its own: what clients see first
never waits for a transaction. Where more waits than memory may hold, and at the start of a life, the rows are taken from
q.out itself:

    1. q.out has the row             a restart finds it there, and copies it
    2. it is sent in a transaction
    3. the transaction is committed  the end of q.stable tells the next life which row follows
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kafka.errors import InvalidProducerEpochError, ProducerFencedError

from formats.client_headers import EPOCH, ID, INCARNATION, number
from services.egress.tail import StableRow, read_stable_tail, stable_rows
from services.hosting.failpoints import failpoint
from services.hosting.process import EXIT_FENCED
from services.kafka.clusters import Cluster, close_producer

COMMIT_INTERVAL_S = 0.05
"""A transaction is three requests of ours, and as many writes of the broker's own, however few rows it holds."""
TRANSACTION_ROWS = 5_000
WAITING_BYTES = 64 << 20
BATCH_BYTES = 256 << 10

_logger = logging.getLogger("boreal.egress")


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows that q.out has at the offsets from `offset` up to `end`."""

    rows: list[StableRow]
    offset: int
    end: int
    nbytes: int


class StableTopic:
    """The one writer of q.stable: making it fences the one before, and ends its transaction. `exit` ends the process."""

    def __init__(
        self, cluster: Cluster, topic: str, transactional_id: str, out_topic: str, exit: Callable[[int], None]
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._out_topic = out_topic
        self._exit = exit
        self._producer = cluster.make_producer(transactional_id=transactional_id, batch_size=BATCH_BYTES)
        self._producer.init_transactions()
        self.next_id = read_stable_tail(cluster, topic, out_topic)
        self.n_skipped = 0
        self._incarnation = number(0)
        self._place = 0
        self._known = 0
        self._is_behind = False
        self._waiting: deque[_Chunk] = deque()
        self._waiting_bytes = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="stable", daemon=True)

    def begin(self, incarnation: int, lacking_from: int, end: int) -> None:
        """Go on with what q.out holds from the offset `lacking_from` up to its `end`, and then with what is put."""
        self._incarnation = number(incarnation)
        self._place, self._known = lacking_from, end
        self._is_behind = lacking_from < end
        self._thread.start()

    def put(self, rows: list[StableRow], offset: int) -> None:
        """Hand over rows that q.out has at `offset` and after it. Returns at once."""
        end = offset + len(rows)
        nbytes = sum(len(row.value) for row in rows)
        with self._changed:
            self._known = end
            self._waiting.append(_Chunk(rows, offset, end, nbytes))
            self._waiting_bytes += nbytes
            if self._waiting_bytes > WAITING_BYTES:
                # They are in q.out, and will be read from there.
                self._waiting.clear()
                self._waiting_bytes = 0
                self._is_behind = True
            self._changed.notify()

    def close(self) -> None:
        """Stop, once all that was put is committed or two seconds have passed."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=2)
        close_producer(self._producer, 0)

    # The thread

    def _run(self) -> None:
        try:
            while self._work():
                pass
        except (ProducerFencedError, InvalidProducerEpochError):
            _logger.error("%s has another writer: a later life of ours has begun", self._topic)
            self._exit(EXIT_FENCED)
        except Exception:
            _logger.exception("%s cannot be written", self._topic)
            self._exit(1)

    def _work(self) -> bool:
        """One transaction, or the copying of all that waits in q.out; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_behind or self._is_closed)
            if self._is_behind:
                self._is_behind = False
                until = self._waiting[0].offset if self._waiting else self._known
                chunks = []
            elif self._waiting:
                chunks = self._take()
            else:
                return False
        if chunks:
            self._commit([row for chunk in chunks for row in chunk.rows])
            self._place = chunks[-1].end
        else:
            self._copy(until)
        return True

    def _take(self) -> list[_Chunk]:
        """As much of what waits as one transaction takes."""
        chunks: list[_Chunk] = []
        rows = 0
        while self._waiting and rows < TRANSACTION_ROWS:
            chunks.append(self._waiting.popleft())
            self._waiting_bytes -= chunks[-1].nbytes
            rows += len(chunks[-1].rows)
        return chunks

    def _copy(self, until: int) -> None:
        """What q.out holds before the offset `until`, and q.stable does not."""
        batch: list[StableRow] = []
        for row in stable_rows(self._cluster, self._out_topic, self._place, until):
            batch.append(row)
            if len(batch) == TRANSACTION_ROWS:
                self._commit(batch)
                batch = []
        self._commit(batch)
        self._place = until

    def _commit(self, rows: list[StableRow]) -> None:
        """Rows that q.stable has already are passed over: stable rows of one id are the same in all lives (I1)."""
        started = time.monotonic()
        next_id = self.next_id
        fresh = []
        for row in rows:
            if row.id < next_id:
                continue
            if row.id > next_id:
                _logger.error("the stable rows %d to %d are lost to %s", next_id, row.id - 1, self._topic)
                self.n_skipped += row.id - next_id
            fresh.append(row)
            next_id = row.id + 1
        if not fresh:
            return
        failpoint("egress.between_out_and_stable")
        self._producer.begin_transaction()
        for row in fresh:
            headers = [(ID, number(row.id)), (EPOCH, number(row.epoch)), (INCARNATION, self._incarnation)]
            self._producer.send(self._topic, row.value, key=row.key, headers=headers, partition=0)
        failpoint("egress.before_commit")
        self._producer.commit_transaction()
        failpoint("egress.after_commit")
        self.next_id = next_id
        with self._changed:
            left = COMMIT_INTERVAL_S - (time.monotonic() - started)
            self._changed.wait_for(lambda: self._is_closed, timeout=max(left, 0))
