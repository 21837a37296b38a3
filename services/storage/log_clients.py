"""The clients with which a process writes and reads logs, and writes what clients read.

All roles of the process share them, one set for each site. What logs append that may wait is gathered, and goes in few
requests.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import MessageSizeTooLargeError

from boreal.model.errors import BorealError
from boreal.model.frames import LogId
from boreal.model.lazy import lazy_once
from services.kafka.clusters import Cluster, close_producer, silence_producer, until_made
from services.kafka.gathering import FEW_LOGS, GatherPace
from services.kafka.row_producers import KafkaPythonRows, RowProducer
from services.storage.local_logs import LocalLogs
from services.storage.log_ends import LogEnds

BATCH_BYTES = 256 << 10
"""The size of a request to Kafka: records that wait for an earlier request go together."""
LINGER_MS = 10
"""How long the patient producer waits for what other logs append."""
REQUEST_LOGS, BETWEEN_REQUESTS_S = 32, 0.005
"""A request has what so many logs have gathered, and the next one follows so much later: what busy logs append waits for the
request before it."""


@dataclass
class AppendRefusedError(BorealError):
    """Kafka has rejected a frame for good. All frames after it, in all logs of the site, are lost, or in all q.outs; in both
    where one client writes both. Who writes them must restart from what they hold."""

    log: LogId | str
    """The log that the frame was appended to, or the name of another topic."""
    topic: str
    """The log's topic."""
    error: Exception
    """Kafka's error."""

    def __str__(self) -> str:
        text = f"Kafka rejects a frame appended to {self.log}: {self.error!r}"
        if isinstance(self.error, MessageSizeTooLargeError):
            text += "; the rows of one bucket, or batch, exceed the size limit of a record: use more shards, or fewer columns"
        return text


class SiteClients:
    """The clients with which one process reads and writes the logs of one site, and writes q.out; created on first use."""

    def __init__(
        self,
        cluster: Cluster,
        gathering: GatherPace | None = None,
        local: LocalLogs | None = None,
        ends: LogEnds | None = None,
    ) -> None:
        """gathering: of the logs of the process; None: what logs with rows append is not gathered. local: hands what is written
        to those who read it in this process; None: nobody does. ends: of the site's logs, which the process shares; None: its
        own."""
        self._cluster = cluster
        self.local = local or LocalLogs()
        """Takes what Kafka has confirmed."""
        self.gathering = gathering or GatherPace(FEW_LOGS)
        """Whether what logs append is gathered."""
        self.ends = ends or LogEnds(cluster)
        """Looks at the ends of logs, and lends what searches them."""
        self._has_own_ends = ends is None
        self.making = threading.RLock()
        """Each client is made once: with two producers, frames of a log would change places."""
        self.gathered = GatheredLogs(cluster.site)
        """Sends what logs append that may wait."""
        self.refusal: AppendRefusedError | None = None
        """The first rejected append; after it no log of the site is written any more."""
        self.row_refusal: AppendRefusedError | None = None
        """The same of what clients read."""

    @lazy_once
    def producer(self) -> KafkaProducer:
        """Writes logs with rows."""
        return self._make_producer()

    @lazy_once
    def patient_producer(self) -> KafkaProducer:
        """Writes logs without rows, and, where they gather, logs with few rows at a time. kafka-python looks at each
        partition that it has ever written, for every request, and Kafka handles the requests of a client one after the other:
        so calm logs cost those with rows nothing."""
        return self._make_producer(linger_ms=LINGER_MS)

    def _make_producer(self, **options: Any) -> KafkaProducer:
        make = partial(self._cluster.make_producer, batch_size=BATCH_BYTES, **options)
        return until_made(make, f"logs of {self._cluster.site} cannot be written")

    @lazy_once
    def row_producer(self) -> RowProducer:
        """What writes q.out. kafka-python's is the one that writes the logs: so what a process has to say goes in few
        requests."""
        return self._cluster.make_row_producer(lambda: self.producer)

    @lazy_once
    def admin(self) -> KafkaAdminClient:
        return self._cluster.make_admin()

    def refuse(self, refusal: AppendRefusedError) -> None:
        """An append to a log has failed: send nothing more to logs. Call this in the errback."""
        self.refusal = self.refusal or refusal
        for producer in self._log_producers:
            silence_producer(producer)
        if self._writes_rows_alike:
            self.row_refusal = self.row_refusal or refusal

    def refuse_rows(self, refusal: AppendRefusedError) -> None:
        """The same of what clients read. Logs are written on if another client writes them."""
        self.row_refusal = self.row_refusal or refusal
        silence_producer(self.row_producer)
        if self._writes_rows_alike:
            self.refusal = self.refusal or refusal

    @property
    def _log_producers(self) -> list[KafkaProducer]:
        return [self.__dict__[name] for name in ("producer", "patient_producer") if name in self.__dict__]

    @property
    def _writes_rows_alike(self) -> bool:
        """Whether the producer of logs writes what clients read, too, or might: nothing was written yet."""
        return isinstance(self.__dict__.get("row_producer"), KafkaPythonRows | None)

    def close(self) -> None:
        self.gathered.close()
        if self._has_own_ends:
            self.ends.close()
        for producer in (*self._log_producers, self.__dict__.get("row_producer")):
            if producer is not None and not isinstance(producer, KafkaPythonRows):  # which is the first one
                close_producer(producer, 2)
        if "admin" in self.__dict__:
            self.admin.close()


class LogClients:
    """The clients of all sites that the roles of one process share. A site's clients are used until an append is rejected:
    then nobody can write with them, and roles that begin later get others. A query whose append was rejected gets its own from
    then on, so that it cannot stop the others again."""

    def __init__(self, clusters: Mapping[str, Cluster], gathering: GatherPace | None = None) -> None:
        """gathering: as for `SiteClients`."""
        self._clusters = clusters
        self.local = {site: LocalLogs() for site in clusters}
        """By site: hand what is written to those who read it in this process."""
        self.ends = {site: LogEnds(cluster) for site, cluster in clusters.items()}
        """By site: look at the ends of logs."""
        self._gathering = gathering
        self._lock = threading.Lock()
        self._shared: dict[str, SiteClients] = {}
        self._users: Counter[SiteClients] = Counter()
        self._rejected: set[str] = set()

    def lease(self, topics: Collection[str]) -> dict[str, SiteClients]:
        """Clients of each site for a role that writes or reads logs in these topics, until they are returned."""
        with self._lock:
            unused = list[SiteClients]()
            for site, clients in list(self._shared.items()):
                refusals = [refusal for refusal in (clients.refusal, clients.row_refusal) if refusal is not None]
                if refusals:
                    self._rejected.update(refusal.topic for refusal in refusals)
                    del self._shared[site]
                    if not self._users[clients]:
                        unused.append(clients)
                        del self._users[clients]
            is_alone = not self._rejected.isdisjoint(topics)
            leased = {site: self._make(site) if is_alone else self._of(site) for site in self._clusters}
            self._users.update(leased.values())
        _close(unused)
        return leased

    def give_back(self, leased: Iterable[SiteClients]) -> None:
        """The role needs them no more: clients without a role are closed, but for those that the next role gets."""
        with self._lock:
            self._users.subtract(leased)
            unused = [one for one in leased if not self._users[one] and one not in self._shared.values()]
            for one in unused:
                del self._users[one]
        _close(unused)

    def close(self) -> None:
        """Close the clients that are shared. Call when no role uses them any more."""
        with self._lock:
            shared, self._shared = list(self._shared.values()), {}
        _close(shared)
        for ends in self.ends.values():
            ends.close()

    def _of(self, site: str) -> SiteClients:
        if site not in self._shared:
            self._shared[site] = self._make(site)
        return self._shared[site]

    def _make(self, site: str) -> SiteClients:
        return SiteClients(self._clusters[site], self._gathering, self.local[site], self.ends[site])


def _close(clients: Iterable[SiteClients]) -> None:
    for each in clients:
        each.close()


class WaitingLog(Protocol):
    """A log that has appended what may wait."""

    def send_gathered(self) -> None:
        """Send it, if that is not to wait for Kafka. Never raises."""
        ...


class GatheredLogs:
    """Logs of one site with frames that wait to be sent: those of many logs go in one request. A thread of its own sends them,
    which wakes the client's thread once for all."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._changed = threading.Condition()
        self._waiting: list[WaitingLog] = []
        self._due = math.inf
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def add(self, log: WaitingLog, within_s: float) -> None:
        """Send what this log has appended within this time, together with what others append meanwhile; returns at once."""
        with self._changed:
            self._waiting.append(log)
            due = time.monotonic() + within_s
            if due < self._due:
                self._due = due
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"gathered-logs-{self._site}", daemon=True)
                self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _run(self) -> None:
        while logs := self._gather():
            for first in range(0, len(logs), REQUEST_LOGS):
                for log in logs[first : first + REQUEST_LOGS]:
                    log.send_gathered()
                time.sleep(BETWEEN_REQUESTS_S)

    def _gather(self) -> list[WaitingLog]:
        """The logs to send now; none once this is closed."""
        with self._changed:
            while not self._is_closed:
                wait_s = self._due - time.monotonic()
                if wait_s <= 0:
                    break
                self._changed.wait(None if self._due == math.inf else wait_s)
            waiting, self._waiting, self._due = self._waiting, [], math.inf
            return [] if self._is_closed else waiting
