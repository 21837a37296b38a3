"""The dead letters of a query at one site: reads the newest, and puts the records of some back into their streams' topics.

A replay is at most once for each letter, even if others replay too, or a process is killed:

1. A writer begins: Kafka aborts what an earlier one has not committed, and refuses it from then on.
2. All letters and notes are read: which of those that are meant have not been put back.
3. Records go back with a note that names their letters, in one transaction of at most BATCH of them.

The letters of a stream are in the cluster that has its topic, so one transaction covers both. While it is open, readers of
committed records wait, the stream's source among them: some milliseconds; after a kill between its records until Kafka ends it,
which takes up to twenty seconds.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError

from boreal.model.errors import UserError
from formats.dead_letter import (
    BEYOND_LIMIT,
    NO_RECORD,
    NO_ROW,
    PUT_BACK_BEFORE,
    DeadLetterRecord,
    KeptLetter,
    LetterChoice,
    LetterPage,
    ReplayNote,
    ReplayOutcome,
    read_letter,
    text_of,
)
from intake.intake import BOUNDARY_HEADER, POSTED_HEADER, REPLAYED_HEADER, replay_mark
from services.kafka.clusters import ANSWERED_WITHIN_MS, Cluster, close_producer, is_fenced
from services.kafka.reading import read_range
from services.kafka.topics import dead_letter_topic

WRITER = "boreal.replay"
"""With the query's name, the transactional id of all that put its records back."""
PIECE = 2_000
"""How many offsets are read at a time, backwards."""
MOST_LOOKED_AT = 100_000
"""How many letters are looked at, at most, to find those that are wanted."""
BATCH = 500
"""How many records are put back in one transaction."""
NEAR = 1_000
"""Records that are no further apart are read on to; for others the reader jumps."""

ATTEMPTS = 5
"""How often a replay that others overtake begins."""
WAIT_S = 0.1
"""Before its second attempt it waits at most twice this, in seconds, and before each further one twice as long."""

_DROPPED_HEADERS = (POSTED_HEADER, REPLAYED_HEADER)


@dataclass
class OvertakenError(UserError):
    """Others replay letters of the same query again and again; what this call had committed counts."""

    replayed: int = 0
    """How many letters that are."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A letter that is to be put back."""

    number: int
    """Its offset in q.dlq."""
    letter: DeadLetterRecord
    """The letter."""


class LetterTopic:
    """q.dlq at one site. KafkaError if the site does not answer."""

    def __init__(self, cluster: Cluster, query: str) -> None:
        self._cluster = cluster
        self._query = query
        self._partition = TopicPartition(dead_letter_topic(query), 0)

    def newest(self, choice: LetterChoice, limit: int) -> LetterPage:
        """At most `limit` letters of a choice, the newest first."""
        found: list[KeptLetter] = []
        replayed: set[int] = set()
        looked_at, oldest_ms = 0, 0.0
        with closing(self._consumer()) as consumer:
            first, end = self._extent(consumer)
            while end > first and len(found) < limit:
                if looked_at >= MOST_LOOKED_AT:
                    return LetterPage(tuple(found), oldest_ms)
                begin = max(first, end - PIECE)
                # Backwards, so that each note comes before its letters.
                for record, content in reversed(list(self._read(consumer, begin, end))):
                    oldest_ms, looked_at = float(record.timestamp), looked_at + 1
                    if isinstance(content, ReplayNote):
                        replayed.update(content.replayed)
                    elif choice.takes(content, oldest_ms) and len(found) < limit:
                        id_ = f"{self._cluster.site}:{record.offset}"
                        found.append(KeptLetter(id_, oldest_ms, content, record.offset in replayed))
                if choice.since_ms is not None and oldest_ms < choice.since_ms:
                    break
                end = begin
        return LetterPage(tuple(found))

    def replay(self, choice: LetterChoice, topics: Mapping[str, str], limit: int, by: str) -> ReplayOutcome:
        """Put the records of a choice back, the oldest letters first, at most `limit`. topics: the topic of each stream. by:
        who does it. A call that is overtaken by another goes on after it; OvertakenError after ATTEMPTS. KafkaError if Kafka
        leaves it unsaid whether the last records were taken: to repeat the call puts none of them back twice."""
        replayed = 0
        for attempt in range(ATTEMPTS):
            if attempt:
                # Two calls that overtake each other do not begin again at the same time.
                time.sleep(random.uniform(0, WAIT_S * 2**attempt))
            try:
                outcome = self._replay(choice, topics, limit - replayed, by)
            except OvertakenError as error:
                replayed += error.replayed
                continue
            # What this call itself had put back before is none of what was left.
            left = {why: count - replayed if why == PUT_BACK_BEFORE else count for why, count in outcome.left.items()}
            return ReplayOutcome(replayed + outcome.replayed, {why: count for why, count in left.items() if count > 0})
        fix = "ask again when others have put theirs back"
        raise OvertakenError("NAME", self._query, "was overtaken by other replays of its dead letters", fix, replayed)

    def _replay(self, choice: LetterChoice, topics: Mapping[str, str], limit: int, by: str) -> ReplayOutcome:
        """One attempt."""
        done = 0
        producer = self._cluster.make_writer(f"{WRITER}.{self._query}", ANSWERED_WITHIN_MS)
        try:
            producer.init_transactions()
            with closing(self._consumer()) as consumer:
                pending, left = self._pending(consumer, choice, topics)
                left[BEYOND_LIMIT] = max(len(pending) - limit, 0)
                for start in range(0, min(len(pending), limit), BATCH):
                    numbers = pending[start : min(start + BATCH, limit)]
                    letters = self._letters(consumer, numbers)
                    put_back = self._put_back(producer, letters, _originals(consumer, letters), by)
                    done += put_back
                    left[NO_RECORD] += len(letters) - put_back
        except KafkaError as error:
            if not is_fenced(error):
                raise
            raise OvertakenError("NAME", self._query, "was overtaken by another replay", "ask again", done) from None
        finally:
            close_producer(producer, 1)
        return ReplayOutcome(done, {why: count for why, count in left.items() if count})

    # Reading

    def _consumer(self) -> KafkaConsumer:
        return self._cluster.make_consumer(read_committed=True, bootstrap_timeout_ms=ANSWERED_WITHIN_MS)

    def _extent(self, consumer: KafkaConsumer) -> tuple[int, int]:
        """The first offset, and the end."""
        partition = self._partition
        if not consumer.partitions_for_topic(partition.topic):
            return 0, 0
        return consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]

    def _read(
        self, consumer: KafkaConsumer, begin: int, end: int
    ) -> Iterator[tuple[ConsumerRecord, DeadLetterRecord | ReplayNote]]:
        """The letters and notes from `begin` on and before `end`; what can be read as neither is left out."""
        for record in _read_span(consumer, self._partition, begin, end):
            try:
                yield record, read_letter(record.value)
            except (KeyError, TypeError, ValueError):
                continue

    def _pending(
        self, consumer: KafkaConsumer, choice: LetterChoice, topics: Mapping[str, str]
    ) -> tuple[list[int], Counter[str]]:
        """The numbers of the letters of a choice that may be put back; and how many others it has, by the reason."""
        wanted: list[int] = []
        replayed: set[int] = set()
        left: Counter[str] = Counter()
        for record, content in self._read(consumer, *self._extent(consumer)):
            if isinstance(content, ReplayNote):
                replayed.update(content.replayed)
            elif choice.takes(content, float(record.timestamp)):
                if topics.get(content.source) == content.topic and not content.reason.startswith(f"header {BOUNDARY_HEADER}"):
                    wanted.append(record.offset)
                else:
                    left[NO_ROW] += 1
        pending = [number for number in wanted if number not in replayed]
        left[PUT_BACK_BEFORE] = len(wanted) - len(pending)
        return pending, left

    def _letters(self, consumer: KafkaConsumer, numbers: Sequence[int]) -> list[_Pending]:
        """The letters with these numbers, which rise."""
        wanted = set(numbers)
        return [
            _Pending(record.offset, content)
            for record, content in self._read(consumer, numbers[0], numbers[-1] + 1)
            if record.offset in wanted and isinstance(content, DeadLetterRecord)
        ]

    # Writing

    def _put_back(
        self, producer: KafkaProducer, letters: Sequence[_Pending], originals: Mapping[int, ConsumerRecord], by: str
    ) -> int:
        """Send the records of some letters, and the notes; returns how many there are."""
        values = {each.number: _value_of(each, originals) for each in letters}
        done = [each for each in letters if values[each.number] is not None]
        if not done:
            return 0
        producer.begin_transaction()
        try:
            for each in done:
                letter, original = each.letter, originals.get(each.number)
                mark = (REPLAYED_HEADER, replay_mark(self._query, letter.source, each.number))
                kept = [] if original is None else [item for item in original.headers if item[0] not in _DROPPED_HEADERS]
                key, partition, at_ms = None, 0, None
                if original is not None:  # a query may read all of these as columns
                    key, partition, at_ms = original.key, letter.partition, original.timestamp
                sent = {"key": key, "headers": [*kept, mark], "partition": partition, "timestamp_ms": at_ms}
                producer.send(letter.topic, values[each.number], **sent)
            for source in sorted({each.letter.source for each in done}):
                numbers = tuple(each.number for each in done if each.letter.source == source)
                note = ReplayNote(source, numbers, by).to_json()
                producer.send(self._partition.topic, note, key=source.encode(), partition=0)
            producer.commit_transaction()
        except KafkaError:
            with suppress(KafkaError):
                producer.abort_transaction()
            raise
        return len(done)


def _value_of(each: _Pending, originals: Mapping[int, ConsumerRecord]) -> bytes | None:
    """The record of a letter as it goes back; None if it is not known any more."""
    original = originals.get(each.number)
    return each.letter.value if original is None else original.value


def _originals(consumer: KafkaConsumer, letters: Sequence[_Pending]) -> dict[int, ConsumerRecord]:
    """The records that letters speak of, by the number of the letter, as far as their topic still has them. In a topic that was
    created again, another record may be in the place of one."""
    places: dict[TopicPartition, dict[int, _Pending]] = {}
    for each in letters:
        places.setdefault(TopicPartition(each.letter.topic, each.letter.partition), {})[each.letter.offset] = each
    found: dict[int, ConsumerRecord] = {}
    for partition, wanted in places.items():
        if partition.partition not in (consumer.partitions_for_topic(partition.topic) or ()):
            continue
        first, end = consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]
        for begin, upto in _spans(sorted(offset for offset in wanted if first <= offset < end)):
            for record in _read_span(consumer, partition, begin, upto):
                of = wanted.get(record.offset)
                if of is not None and text_of(record.value) == of.letter.record:
                    found[of.number] = record
    return found


def _spans(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Spans that cover offsets, which rise: of one with the next where it is near."""
    begin: int | None = None
    for place, offset in enumerate(offsets):
        begin = offset if begin is None else begin
        if place + 1 == len(offsets) or offsets[place + 1] - offset > NEAR:
            yield begin, offset + 1
            begin = None


def _read_span(consumer: KafkaConsumer, partition: TopicPartition, begin: int, end: int) -> Iterator[ConsumerRecord]:
    """As `read_range`, of a partition to which the consumer changes."""
    consumer.assign([partition])
    return read_range(consumer, partition, begin, end, ANSWERED_WITHIN_MS / 1_000)
