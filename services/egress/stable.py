"""q.stable: the stable rows only, each once for read_committed readers (R28). And q.records, which holds the same rows in
another format.

A row goes to q.stable when Kafka has confirmed it in q.out, in short transactions, in a separate thread: q.out never waits for
a transaction. If more rows wait than memory may hold, and when an incarnation begins, the rows are read from q.out:

    1. q.out has the row             a restart finds it there, and copies it
    2. it is sent in a transaction
    3. the transaction is committed  the next incarnation sees from the end of q.stable which row follows

While a schema registry does not take the schema of q.records, rows wait for it in q.out. All other topics go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from boreal.model.errors import BorealError
from boreal.model.schema import TRACEPARENT
from formats.client_headers import EPOCH, ID, INCARNATION, VERSION, number
from services.egress.plain_form import ColumnsUnknown, RecordForm
from services.egress.tail import StableRow, read_stable_tail, stable_rows
from services.hosting.commits import CommitPace
from services.hosting.failpoints import failpoint
from services.hosting.process import EXIT_FENCED
from services.hosting.registry import RegistryError
from services.hosting.turns import Turns
from services.kafka.clusters import Cluster, close_producer, is_fenced

TRANSACTION_ROWS = 5_000
WAITING_BYTES = 64 << 20
REGISTRY_RETRY_S = 0.5
BATCH_BYTES = 256 << 10

_logger = logging.getLogger("boreal.egress")


@dataclass(frozen=True, slots=True)
class _PendingRows:
    """Rows that wait for a transaction."""

    rows: list[StableRow]
    offset: int  # of the first row in q.out
    end: int  # the offset in q.out after the last one
    nbytes: int


class StableTopic:
    """The only writer of q.stable, or of q.records: its constructor fences the writer before, and aborts its transaction.
    `exit(code)` ends the process. `next_id`: the first id that the topic lacks; `n_skipped`: how many rows were lost;
    `waits_for`: what rows wait for beside Kafka, None if for nothing."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        transactional_id: str,
        out_topic: str,
        exit: Callable[[int], None],
        form: RecordForm | None = None,
        pace: CommitPace | None = None,
        turns: Turns | None = None,
    ) -> None:
        """form: of the records' values; None: a row as it is. Closed with this. pace, turns: of the process; None: it does
        nothing else."""
        self._form = form
        self._pace = pace or CommitPace()
        self._turns = turns or Turns()
        self.waits_for: str | None = None
        self._cluster = cluster
        self._topic = topic
        self._out_topic = out_topic
        self._exit = exit
        with ExitStack() as made:
            self._producer = cluster.make_transaction_producer(transactional_id, batch_size=BATCH_BYTES)
            made.callback(close_producer, self._producer, 0)
            self.next_id = read_stable_tail(cluster, topic, out_topic)
            made.pop_all()
        self.n_skipped = 0
        self._incarnation = number(0)
        self._place = 0
        self._known = 0
        self._is_behind = False
        self._waiting: deque[_PendingRows] = deque()
        self._waiting_bytes = self._waiting_rows = 0
        self._next_at = 0.0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="stable", daemon=True)
        self._pace.join()

    def begin(self, incarnation: int, lacking_from: int, end: int) -> None:
        """Copy the rows that q.out holds at offsets from `lacking_from` up to `end`, then write those that are put."""
        self._incarnation = number(incarnation)
        self._place, self._known = lacking_from, end
        self._is_behind = lacking_from < end
        self._thread.start()

    def put(self, rows: list[StableRow], offset: int) -> None:
        """Queue rows that q.out has at `offset` and after it. Returns at once."""
        end = offset + len(rows)
        nbytes = sum(len(row.value) for row in rows)
        with self._changed:
            self._known = end
            self._waiting.append(_PendingRows(rows, offset, end, nbytes))
            self._waiting_bytes += nbytes
            self._waiting_rows += len(rows)
            if self._waiting_bytes > WAITING_BYTES:
                # They are in q.out, and will be copied from there.
                self._waiting.clear()
                self._waiting_bytes = self._waiting_rows = 0
                self._is_behind = True
            self._changed.notify()

    def close(self) -> None:
        """Stop when all rows that were put are committed, or after two seconds."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=2)
        close_producer(self._producer, 0)
        self._pace.leave()
        if self._form is not None:
            self._form.close()

    # The thread

    def _run(self) -> None:
        try:
            while self._work():
                pass
        except Exception as error:
            if is_fenced(error):
                _logger.error("%s has another writer: a later incarnation of this egress has begun", self._topic)
                self._exit(EXIT_FENCED)
            else:
                _logger.exception("%s cannot be written", self._topic)
                self._exit(1)

    def _work(self) -> bool:
        """Commit one transaction, or copy all rows that wait in q.out; False when closed and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_behind or self._is_closed)
            self._changed.wait_for(lambda: self._has_much, max(self._next_at - time.monotonic(), 0))
            if self._is_behind:
                self._is_behind = False
                until = self._waiting[0].offset if self._waiting else self._known
                chunks = []
            elif self._waiting:
                chunks = self._take()
            else:
                return False
        if chunks:
            self._next_at = time.monotonic() + self._pace.interval_s
            self._commit([row for chunk in chunks for row in chunk.rows])
            self._place = chunks[-1].end
        else:
            self._copy(until)
        return True

    @property
    def _has_much(self) -> bool:
        """Whether the next transaction need not wait for more rows."""
        return self._is_behind or self._is_closed or self._waiting_rows >= TRANSACTION_ROWS

    def _take(self) -> list[_PendingRows]:
        """The next waiting rows, as many as one transaction takes."""
        chunks: list[_PendingRows] = []
        rows = 0
        while self._waiting and rows < TRANSACTION_ROWS:
            chunks.append(self._waiting.popleft())
            self._waiting_bytes -= chunks[-1].nbytes
            rows += len(chunks[-1].rows)
        self._waiting_rows -= rows
        return chunks

    def _copy(self, until: int) -> None:
        """Copy the rows that q.out holds before the offset `until`, and q.stable lacks."""
        batch: list[StableRow] = []
        for row in stable_rows(self._cluster, self._out_topic, self._place, until):
            batch.append(row)
            if len(batch) == TRANSACTION_ROWS:
                self._commit(batch)
                batch = []
        self._commit(batch)
        self._place = until

    def _commit(self, rows: list[StableRow]) -> None:
        """Commit the rows that q.stable lacks. Those that it has are skipped: stable rows of one id are the same in all
        incarnations (I1)."""
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
        if fresh:
            failpoint("egress.between_out_and_stable")
        while fresh:
            values = self._values(fresh)
            if not values:
                return
            self._commit_values(fresh[: len(values)], values)
            fresh = fresh[len(values) :]

    def _commit_values(self, rows: list[StableRow], values: list[bytes]) -> None:
        """Commit rows as records of these values, in one transaction."""
        self._producer.begin_transaction()
        with self._turns.take():
            self._send(rows, values)
        failpoint("egress.before_commit")
        self._producer.commit_transaction()
        failpoint("egress.after_commit")
        self.next_id = rows[-1].id + 1

    def _send(self, rows: list[StableRow], values: list[bytes]) -> None:
        for row, value in zip(rows, values, strict=True):
            headers = [(ID, number(row.id)), (EPOCH, number(row.epoch)), (INCARNATION, self._incarnation)]
            if row.trace is not None:
                headers.append((TRACEPARENT, row.trace))
            if row.version is not None:
                headers.append((VERSION, row.version))
            self._producer.send(self._topic, value, key=row.key, headers=headers, partition=0)

    def _values(self, rows: list[StableRow]) -> list[bytes]:
        """The values of the records of rows, or of the first of them, where the schema of those after them is not registered.
        Waits for the schema registry where it is that of the first row. Empty: closed meanwhile."""
        form = self._form
        if form is None:
            return [row.value for row in rows]
        while not self._is_closed:
            values: list[bytes] = []
            try:
                for row in rows:
                    values.append(form.value(row.value, row.version_number))
            except (RegistryError, ColumnsUnknown) as error:
                if not values:
                    self._wait_for(error)
                    continue
            self.waits_for = None
            return values
        return []

    def _wait_for(self, error: BorealError) -> None:
        if self.waits_for is None:
            _logger.warning("rows of %s wait for %s", self._topic, error)
        self.waits_for = str(error)
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, timeout=REGISTRY_RETRY_S)
