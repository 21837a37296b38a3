"""What must be right at the end of a run, whatever has failed in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from kafka import TopicPartition

from boreal.model.frames import LogId, State
from boreal.query.plan import Plan
from formats.client_headers import ID, INCARNATION
from formats.json_text import column_texts, joined, listed, object_parts
from role_simulation.broker import Broker
from role_simulation.scenario import RoleScenario
from role_simulation.threads import now_us
from role_simulation.world import RoleWorld
from services.kafka.topics import STATUS, latest_topic, out_topic, stable_topic
from simulation.client import faults_of_records
from simulation.feed import StreamFeed
from simulation.oracle import Oracle

_PRODUCER = "producer"
_SHARED = ("control-", "follow-boreal.queries-", "follow-calm-", "gathered-logs-", "host-loop", "outbox-", _PRODUCER, "status")
"""How the names of threads begin that a worker's roles share, and that stay when a role ends."""
_MOST_PRODUCERS = 4
"""So many a worker's roles share at each site: two for logs, one for control, and one for statuses at the home site."""


def check_results(world: RoleWorld, scenario: RoleScenario) -> Iterator[str]:
    """What is wrong with the results that clients were given, and with the roles, once all has healed."""
    name = scenario.query.name
    plan = world.layouts[name].plan
    expected = expected_rows(plan, scenario)
    stable = list(world.home.committed(TopicPartition(stable_topic(name), 0)))
    ids = [int(dict(record.headers)[ID]) for record in stable]
    if ids != list(range(len(ids))):
        yield f"q.stable has the ids {ids}"
    yield from _differences("q.stable", [(record.value or b"").decode() for record in stable], expected)
    for site, broker in world.brokers.items():
        out = out_of(scenario, site)
        yield from _faults_of_out(broker, out, expected)
        if not (scenario.has_twins or scenario.is_joined):
            # Where a role may run twice, only the rules for readers tell which records count.
            texts = [json.dumps(record) for _, _, record in _records_of(broker, out)]
            yield from faults_of_records(texts, expected, is_settled=True)
    if plan.latest:
        yield from _faults_of_latest(world.home, TopicPartition(latest_topic(name), 0), expected)
    yield from _unready(world)


def left_threads(left: Mapping[str, list[str]], sites: Sequence[str]) -> Iterator[str]:
    """What is wrong with the threads that run on in each worker whose roles have all ended."""
    for worker, names in left.items():
        if others := [name for name in names if not name.startswith(_SHARED)]:
            yield f"roles of {worker} have left {', '.join(sorted(others))}"
        elif names.count(_PRODUCER) > _MOST_PRODUCERS * len(sites):
            yield f"roles of {worker} have left a producer: there are {names.count(_PRODUCER)}"


def out_of(scenario: RoleScenario, site: str) -> TopicPartition:
    """The q.out of a site."""
    return TopicPartition(out_topic(scenario.query.name, site, scenario.sites), 0)


def _faults_of_latest(broker: Broker, latest: TopicPartition, expected: list[str]) -> Iterator[str]:
    """What is wrong with the newest record of each key, once nothing is tentative any more."""
    newest = {record.key: record for record in broker.committed(latest)}
    rows = {record.value.decode() for record in newest.values() if record.value is not None}
    if any(name == "tentative" for record in newest.values() for name, _ in record.headers):
        yield "q.latest has tentative rows"
    if rows != (due := set({json.dumps(_key_of(text)): text for text in expected}.values())):
        yield f"q.latest has {sorted(rows - due)[:2]}, and lacks {sorted(due - rows)[:2]}"


def _key_of(text: str) -> object:
    return json.loads(text)["k"]


def _differences(name: str, texts: list[str], expected: list[str]) -> Iterator[str]:
    for at, (text, due) in enumerate(zip(texts, expected, strict=False)):
        if text != due:
            yield f"row {at} of {name} is {text} instead of {due}"
            return
    if len(texts) != len(expected):
        yield f"{name} has {len(texts)} rows instead of {len(expected)}"


def _faults_of_out(broker: Broker, out: TopicPartition, expected: list[str]) -> Iterator[str]:
    """What is wrong for a reader of q.out that keeps to the rules of docs/readers.md."""
    rows: list[Any] = []
    tentative: list[int] = []
    newest = highest = 0
    lasts = {0}  # the last number of each of those that write as the newest incarnation
    for incarnation, id_, record in _records_of(broker, out):
        number = record["seq"]
        begins = incarnation > newest or record["type"] == "undo"
        if incarnation > newest:
            newest, highest, lasts = incarnation, max(lasts), set()
        # An egress that begins while another one still writes may give numbers again, but leaves none out. Of two that begin at
        # the same moment one only writes its first record; they may have found different ends of those before them.
        if begins and number <= highest + 1:
            lasts.add(number)
        elif number - 1 in lasts:
            lasts = (lasts - {number - 1}) | {number}
        else:
            yield f"seq {number} of incarnation {incarnation} after {sorted(lasts)}, and {highest} of those before"
            return
        match record["type"]:
            case "stable" if id_ == len(rows):
                rows.append(record["data"])
            case "stable" if id_ > len(rows):
                yield f"q.out has no row {len(rows)} before {id_}"
                return
            case "tentative":
                tentative.append(number)
            case "undo":
                tentative = [each for each in tentative if each <= record["after_seq"]]
    if repr(rows) != repr([json.loads(text) for text in expected]):
        yield f"q.out leaves {len(rows)} rows other than the {len(expected)} expected ones"
    if tentative:
        yield f"q.out leaves {len(tentative)} tentative rows"


def _records_of(broker: Broker, out: TopicPartition) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Of each record of q.out that counts: the incarnation of its writer, its id (-1 if it is no stable row), and what it says.
    What an older egress wrote after the first record of the next one does not count, such as what Kafka took late."""
    newest = 0
    for record in broker.committed(out):
        headers = dict(record.headers)
        incarnation = int(headers[INCARNATION])
        if incarnation >= newest:
            newest = incarnation
            yield incarnation, int(headers.get(ID, -1)), json.loads(record.value or b"")


def _unready(world: RoleWorld) -> Iterator[str]:
    """The roles whose last status does not say that they are ready, and whose is too old."""
    last: dict[str, dict[str, Any]] = {}
    for record in world.home.committed(TopicPartition(STATUS, 0)):
        last[(record.key or b"").decode()] = json.loads(record.value or b"")
    for role in world.roles:
        status = last.get(role.name)
        if status is None or not status["ready"]:
            yield f"{role.name} is not ready: {status}"
        elif now_us() / 1_000 - status["at_ms"] > 3_000:
            yield f"{role.name} has said nothing for {now_us() / 1_000 - status['at_ms']} ms"
        elif role.kind == "node":
            yield from (
                f"{role.name} is {each['state']}" for each in status["instances"] if each["state"] != State.STABLE.value
            )


def expected_rows(plan: Plan, scenario: RoleScenario) -> list[str]:
    """The stable rows as JSON texts: what plain Python makes of the records."""
    feeds = {}
    for edge in plan.sources:
        schema = edge.schema.arrow
        rows = [{name: row[name] for name in schema.names} for row in scenario.rows[edge.operator]]
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        feeds[edge.operator] = StreamFeed(batch, (0, batch.num_rows))
    oracle, output = Oracle(plan, feeds), plan.output
    batch = oracle.batch(LogId(output.name, "", 0).key)
    return listed(joined(object_parts(column_texts(output.schema, batch))))
