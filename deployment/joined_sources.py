"""Streams that several queries read in the same way have one source and one log. Pure.

A query that is created joins the sources of streams that another one reads in exactly its way: the same name, topic, rules of
intake, partitions of the log and pace. It is to have the same results as with sources of its own, so their logs must hold all
rows that these ever had:

    1. The record names the sources (`JoinedSources`). The query claims all rows of their logs from now on, and does not run.
    2. The monitor has heard of it, so it publishes no more trims of these logs. It tells their writers to hold all rows, since
       what it has published before may be on its way.
    3. A source says in its status that it holds them. From then on it trims nothing that this query may need.
    4. The monitor looks whether the logs still begin with their first row. If so, the query is placed, and its processes begin.
       If not, or if a source does not answer soon, the query gets sources of its own instead.

Sources belong to nobody. They run as long as any version of any query reads them (`SourceIndex`), by the shortest X of
these, and their logs keep what the slowest one needs. They keep the name of the version that began them; a query that is
created again under a name that sources still have gives its own another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from boreal.model.durations import parse_duration
from boreal.model.errors import UserError
from boreal.query.planner import plan
from boreal.query.spec import Query
from deployment.evolution import EARLIEST
from deployment.query_record import (
    TAKEN_BY_SOURCES,
    TUNING_OF_SOURCES,
    JoinedSources,
    QueryRecord,
    inner_name,
    public_name,
)

Records = Mapping[str, QueryRecord]
"""All queries, by name."""


def join(record: QueryRecord, records: Records) -> QueryRecord:
    """The record of a query that is created, with the sources that it joins. UserError if it cannot be planned."""
    query, others = record.query, _others(record, records)
    of: dict[str, str] = {}
    for stream in sorted({edge.operator for edge in plan(query).sources}):
        candidates = [run for other in others for run in _serving(other) if stream in run.stream_names]
        found = next((run for run in candidates if _reads_alike(query, run, stream)), None)
        if found is not None:
            of[stream] = found.sources_of(stream)
    return _with_sources(record, of, others, claimed=not of)


def settled(record: QueryRecord, held: Collection[str], records: Records) -> QueryRecord:
    """The record with what its claims have come to. held: the streams whose logs have all rows; the others get sources of its
    own."""
    if record.joined is None or record.joined.claimed:
        return record
    of = {stream: name for stream, name in record.joined.of.items() if stream in held}
    return replace(_with_sources(record, of, _others(record, records), claimed=True), revision=record.revision + 1)


def _with_sources(record: QueryRecord, of: Mapping[str, str], others: Iterable[QueryRecord], claimed: bool) -> QueryRecord:
    """The record with these sources, and for all other streams with its own: under another name if others have this one."""
    taken = {name for other in others for run in other.runs() for name in run.named_sources}
    number = record.version
    while inner_name(record.name, number) in taken:
        number += 1
    own = {} if number == record.version else dict.fromkeys(record.stream_names, inner_name(record.name, number))
    joined = JoinedSources({**own, **of}, claimed) if own or of else None
    return replace(record, joined=joined, versions=max(record.versions, number))


def _others(record: QueryRecord, records: Records) -> list[QueryRecord]:
    """All queries but this one, by name."""
    return [other for name, other in sorted(records.items()) if name != record.name]


def _serving(other: QueryRecord) -> list[QueryRecord]:
    """The versions of a query whose sources others may join. Those of a paused one may be about to go."""
    return [] if other.paused or other.leaves else other.runs()


def _reads_alike(query: Query, run: QueryRecord, stream: str) -> bool:
    """Whether a version reads a stream from the beginning, in exactly the way of a query: nothing that its source does, or
    writes, would differ."""
    if _began(run, stream)[1] != EARLIEST:
        return False
    dumped = query.dump()
    if dumped["streams"][stream] != run.spec["streams"][stream] or _tuning(dumped) != _tuning(run.spec):
        return False
    try:
        other = run.query
        edges = [[edge for edge in plan(each).sources if edge.operator == stream] for each in (query, other)]
    except UserError:
        return False  # it runs where its operators are installed
    return query.intervals == other.intervals and edges[0] == edges[1]


def _began(run: QueryRecord, stream: str) -> tuple[int, str]:
    """For the source of a stream that a version reads: the version that began it, of the same query, and from where it reads
    the topic. Of one that was joined, which has read from the beginning, the version that reads it."""
    if run.joined is not None and stream in run.joined.of:
        return run.version, EARLIEST
    return (run.shared.version, run.shared.start) if run.shared is not None else (run.version, run.start)


def _tuning(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {field: spec["tuning"].get(field) for field in TUNING_OF_SOURCES}


# Who reads a source


class SourceIndex:
    """Who reads which source, of all queries: worked out once for all sources."""

    def __init__(self, records: Iterable[QueryRecord]) -> None:
        self._readers: defaultdict[tuple[str, str], list[tuple[QueryRecord, QueryRecord]]] = defaultdict(list)
        """The versions that read a source, by its name and stream, each after its query."""
        self._found: dict[tuple[str, str], QueryRecord | None] = {}
        for record in sorted(records, key=lambda record: record.name):
            for run in record.runs():
                for stream in run.stream_names:
                    self._readers[run.sources_of(stream), stream].append((record, run))

    def record_of(self, name: str, stream: str) -> QueryRecord | None:
        """The record by which the source of a stream with this name runs; None if no version reads it. It is that of the
        version that began it, if that reads it, else of the first query, with the shortest X of all that do."""
        if (name, stream) not in self._found:
            self._found[name, stream] = self._record_of(name, stream)
        return self._found[name, stream]

    def readers_of(self, name: str, stream: str) -> list[str]:
        """The queries of which some version reads the source of a stream with this name. Not those that are being
        deleted."""
        return list(dict.fromkeys(record.name for record, _ in self._in_order(name, stream) if not record.leaves))

    def _record_of(self, name: str, stream: str) -> QueryRecord | None:
        readers = [run for _, run in self._in_order(name, stream)]
        if not readers:
            return None
        first, (version, start) = readers[0], _began(readers[0], stream)
        thresholds = dict.fromkeys(run.spec["delay_threshold"] for run in readers)
        shortest = min(thresholds, key=lambda text: parse_duration(text, "delay_threshold"))
        spec = {**first.spec, "delay_threshold": shortest}
        return replace(first, name=name, spec=spec, version=version, start=start, shared=None, joined=None)

    def _in_order(self, name: str, stream: str) -> list[tuple[QueryRecord, QueryRecord]]:
        """The versions that read a source. Those of the query that began it come first."""
        found = self._readers.get((name, stream), ())
        return sorted(found, key=lambda each: (each[0].leaves, each[0].name != public_name(name)))


class SourceReaders:
    """The queries that read one source, as it hears of them."""

    def __init__(self, sources: str, stream: str, first: str) -> None:
        """sources: its name. first: the query by whose record it runs."""
        self._id = sources, stream
        self._records: dict[str, QueryRecord] = {}
        self._gatherers: dict[str, bool] = {}
        self.names: Sequence[str] = (first,)
        """Those that it writes dead letters for."""

    def take(self, name: str, record: QueryRecord | None) -> QueryRecord | None:
        """A query has changed; None: it is deleted. Returns the record by which the source runs, or None if nothing that
        concerns it has changed. Who reads it last stays in `names` until it ends."""
        before = self._records.pop(name, None)
        if record is not None and SourceIndex([record]).readers_of(*self._id):
            self._records[name] = record
        if self._records.get(name) == before:
            return None
        self._gatherers.pop(name, None)
        if name in self._records:
            self._gatherers[name] = all(map(_may_gather, self._records[name].runs()))
        readers = SourceIndex(self._records.values())
        found = readers.record_of(*self._id)
        if found is not None:
            self.names = readers.readers_of(*self._id)
        return found

    @property
    def may_gather(self) -> bool:
        """Whether all that read it may get its rows later while its process is loaded, as far as it has heard of them."""
        return all(self._gatherers.values())


def _may_gather(run: QueryRecord) -> bool:
    """Not a version that runs where its operators are installed: nobody knows here."""
    try:
        return plan(run.query).may_gather
    except UserError:
        return False


def other_readers(record: QueryRecord, records: Records) -> Iterator[tuple[str, list[str]]]:
    """For each stream of a query that others read from the same source, the names of these."""
    sources = SourceIndex(_others(record, records))
    for stream in record.stream_names:
        names = dict.fromkeys(run.sources_of(stream) for run in record.runs() if stream in run.stream_names)
        found = {reader for name in names for reader in sources.readers_of(name, stream)}
        if found:
            yield stream, sorted(found)


def refuse_change_for_others(old: QueryRecord, wanted: Query, records: Records) -> None:
    """UserError if a change of a query would change what the source of another one does."""
    before, after = old.spec, wanted.dump()
    for stream, others in other_readers(old, records):
        had, wants = (each["streams"].get(stream, {}) for each in (before, after))
        of_stream = [(f"streams.{stream}.{field}", had.get(field), wants.get(field)) for field in TAKEN_BY_SOURCES]
        had, wants = before["tuning"], after["tuning"]
        of_tuning = [(f"tuning.{field}", had.get(field), wants.get(field)) for field in TUNING_OF_SOURCES]
        for path, value, wanted_value in (*of_stream, *of_tuning):
            if value != wanted_value:
                problem = f"would change for {', '.join(others)} too: one source serves all that read {stream} in the same way"
                fix = f"build a version with sources of its own: boreal query apply FILE --evolve; or delete {others[0]}"
                raise UserError(path, wanted_value, problem, fix)


def changed(before: Records, after: Records) -> list[str]:
    """The queries that are there, and have changed between two states of all queries. Of others nothing may differ but the
    sources that they share."""
    return sorted(name for name, record in after.items() if before.get(name) != record)
