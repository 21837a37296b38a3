"""Records with ids of schemas, on a real broker and a real registry, written by the serializers of Confluent's client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from boreal.model.errors import UserError
from boreal.model.frames import Boundary, Data, Origin, Undo
from boreal.model.schema import Schema as PlanSchema
from boreal.model.schema import Type
from boreal.query.spec import load_query
from formats.dead_letter import LetterChoice, ReplayOutcome
from formats.typed_rows import protobuf_file
from services.hosting.registry import Registry, RegistryError
from services.kafka.letter_topic import LetterTopic
from services.kafka.settings import RegistrySettings, ServiceSettings
from services.kafka.topics import TopicSpec, ensure
from services.source.schema_check import check_registries, check_schemas
from services.stack.ports import HOST, free_port
from services.stack.servers import KafkaServer
from tests.registry import RegistryServer
from tests.stack.lives import Life, boundary, cluster_of, records_of, stable_of
from tests.stack.test_source import SECONDS, Bench
from tests.thoroughness import every
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("schema registry")

NAMES = {"user": "string", "n": "int"}
FIELDS: list[dict[str, Any]] = [
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "user", "type": ["null", "string"]},
    {"name": "n", "type": "int"},
]


def avro(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Click", "namespace": "shop", "fields": [*FIELDS, *fields]})


def click(n: int, **more: Any) -> dict[str, Any]:
    return {"at": datetime(2020, 1, 1, tzinfo=UTC) + timedelta(milliseconds=n), "user": f"u{n % 7}", "n": n, **more}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with RegistryServer(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
def alive(registry: RegistryServer) -> RegistryServer:
    """The registry, whatever the test before has done to it."""
    registry.resume()
    registry.start()
    return registry


@pytest.fixture
def client(alive: RegistryServer) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": alive.url})


@pytest.fixture
def make_bench(kafka: KafkaServer, fresh_name: str, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**stream: Any) -> Bench:
        made.append(Bench(kafka.bootstrap, fresh_name, tmp_path, {"format": "avro", **stream}, "librdkafka", shards=2))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def start(bench: Bench, url: str, **more: str) -> Any:
    return bench.start(BOREAL_REGISTRIES__MAIN__URL=url, **more)


def send(bench: Bench, values: list[bytes | None], partition: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bench.bootstrap})
    for value in values:
        producer.produce(bench.topic, value, key=b"any", partition=partition)
    assert producer.flush(SECONDS) == 0


def written(bench: Bench, client: SchemaRegistryClient, schema: str, rows: list[dict[str, Any]]) -> list[bytes | None]:
    """Rows as Confluent's serializer writes them."""
    serialize = AvroSerializer(client, schema)
    return [serialize(row, SerializationContext(bench.topic, MessageField.VALUE)) for row in rows]


def of_columns(bench: Bench, *names: str) -> list[tuple[Any, ...]]:
    batches = [frame.batch for log in bench.logs() for frame in log if isinstance(frame, Data)]
    return sorted(tuple(row[name] for name in names) for batch in batches for row in batch.to_pylist())


def replay(bench: Bench) -> ReplayOutcome:
    return LetterTopic(bench.home, bench.name).replay(LetterChoice(), {"s": bench.topic}, 1_000, "ops")


# Avro


def test_avro_records_are_rows_also_after_their_schema_has_changed(
    make_bench: Callable[..., Bench], alive: RegistryServer, client: SchemaRegistryClient
) -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    inner = {"type": "record", "name": "Item", "fields": [{"name": "price", "type": ["null", price]}]}
    more: list[dict[str, Any]] = [
        {"name": "due", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "items", "type": {"type": "array", "items": inner}},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ]
    place = {"type": "decimal(9, 2)", "path": "items[0].price"}
    schema = {**NAMES, "price": place, "due": "date", "seen": "timestamp"}
    bench = make_bench(schema=schema)
    start(bench, alive.url)
    seen = datetime(2020, 1, 1, 12, tzinfo=UTC)
    rest = {"due": date(2013, 1, 31), "items": [{"price": Decimal("19.90")}, {"price": None}], "seen": seen}
    send(bench, written(bench, client, avro(*more), [click(n, **rest) for n in range(100)]))
    bench.wait_rows(100)
    # A field with a default is added, another is gone.
    added = {"name": "shop", "type": "string", "default": "web"}
    send(bench, written(bench, client, avro(*more, added), [click(n, shop="x", **rest) for n in range(100, 150)]))
    bench.wait_rows(150)
    assert sorted(bench.rows()) == list(range(150)) and not bench.letters()
    [same] = {row[1:] for row in of_columns(bench, "n", "price", "due", "seen")}
    assert same == (Decimal("19.90"), date(2013, 1, 31), seen)


def test_what_cannot_be_a_row_is_a_dead_letter_that_can_be_put_back_byte_for_byte(
    make_bench: Callable[..., Bench], alive: RegistryServer, client: SchemaRegistryClient
) -> None:
    bench = make_bench()
    start(bench, alive.url)
    good = written(bench, client, avro(), [click(n) for n in range(50)])
    assert good[0] is not None
    unknown = b"\0" + (999_999).to_bytes(4) + good[7][5:]  # type: ignore[index]
    lacks = json.dumps({"type": "record", "name": "Click", "namespace": "other", "fields": FIELDS[:2]})
    subject = f"{bench.topic}-other"
    other = client.register_schema(subject, Schema(lacks, "AVRO"))
    short = b"\0" + other.to_bytes(4) + good[7][5:-1]  # type: ignore[index]
    send(bench, [*good[:10], unknown, good[0][:8], good[0] + b"\1", b'{"n": 1}', None, short, *good[10:]])
    bench.wait_rows(50)
    bench.wait(lambda: len(bench.letters()) == 6, "letters")
    assert sorted(bench.rows()) == list(range(50))
    letters = bench.letters()
    assert [letter["offset"] for letter in letters] == list(range(10, 16))
    reasons = [letter["reason"] for letter in letters]
    number = int.from_bytes(good[0][1:5])
    assert reasons[0] == "the schema registry has no schema 999999"
    assert reasons[1].startswith(f"not a record of schema {number}: ")
    assert reasons[2] == f"not a record of schema {number}: 1 bytes are left after its end"
    assert reasons[3].startswith("has no id of a schema") and reasons[4] == "no value"
    assert reasons[5] == f"column n: schema {other} has no field n; with `lacking: nulls` it would be null"

    assert replay(bench).replayed == 5
    back = [record for record in bench.records(bench.topic) if record is not None]
    assert back[-5:] == [unknown, good[0][:8], good[0] + b"\1", b'{"n": 1}', short]
    bench.wait(lambda: bench.status().get("dlq") == 11, "they are refused again")


def test_a_source_waits_for_a_registry_that_is_down_and_loses_and_refuses_nothing(
    make_bench: Callable[..., Bench], alive: RegistryServer, client: SchemaRegistryClient
) -> None:
    bench = make_bench()
    first = written(bench, client, avro(), [click(n) for n in range(10)])
    added = avro({"name": "shop", "type": "string", "default": "web"})
    second = written(bench, client, added, [click(n, shop="x") for n in range(10, 20)])
    start(bench, alive.url)
    send(bench, first)
    bench.wait_rows(10)
    alive.kill()
    # What is known needs no registry.
    send(bench, written_again(first, 5))
    bench.wait_rows(15)
    assert bench.status()["state"] != "failed"
    before = time.time() * 1_000
    send(bench, second)
    bench.wait(lambda: bench.status().get("waits_for") is not None, "it waits")
    said = bench.status()
    assert said["state"] == "failed" and not said["ready"] and said["waits_since_ms"] > before - 5_000
    assert said["waits_for"].startswith(f"schema registry main at {alive.url}: ")
    count = len(boundaries(bench))
    bench.wait(lambda: bench.status()["at_ms"] > said["at_ms"] + 2_000, "two seconds")
    assert len(boundaries(bench)) == count and len(bench.rows()) == 15, "the stream stands still for its readers"
    alive.start()
    bench.wait_rows(25)
    bench.wait(lambda: bench.status().get("waits_for") is None and bench.status()["ready"], "it goes on")
    assert sorted({*bench.rows()}) == list(range(20)) and not bench.letters()


def written_again(values: list[bytes | None], count: int) -> list[bytes | None]:
    return values[-1:] * count


def boundaries(bench: Bench) -> list[int]:
    return [frame.time for frame in bench.logs()[0] if isinstance(frame, Boundary)]


FAILPOINTS = [f"source.{name}:2" for name in ("announced", "between_announcements", "between_logs")]


@pytest.mark.parametrize("failpoint", every(3, FAILPOINTS))
def test_a_schema_that_was_unknown_stays_so_for_its_batch_if_it_is_repeated_after_a_crash(
    make_bench: Callable[..., Bench], alive: RegistryServer, client: SchemaRegistryClient, failpoint: str
) -> None:
    """Else one log would have a row that another lacks."""
    bench = make_bench()
    process = start(bench, alive.url, BOREAL_FAILPOINT=failpoint)
    good = written(bench, client, avro(), [click(n) for n in range(30)])
    send(bench, good[:1])
    bench.wait_rows_or_end(1, process)
    # It will be the next that is registered.
    newest = client.register_schema(f"{bench.topic}-x", Schema(avro({"name": bench.name, "type": "int", "default": 0}), "AVRO"))
    late = b"\0" + (newest + 1).to_bytes(4) + good[29][5:] + b"\2"  # type: ignore[index]
    send(bench, [*good[1:20], late, *good[20:29]])
    process.wait(SECONDS)
    added = avro({"name": f"{bench.name}_later", "type": "int", "default": 0})
    assert client.register_schema(f"{bench.topic}-value", Schema(added, "AVRO")) == newest + 1
    start(bench, alive.url)
    bench.wait_rows(29)
    send(bench, [late])
    bench.wait_rows(30)
    assert sorted(bench.rows()) == list(range(30)), "once it is known, its records are rows"
    assert {letter["reason"] for letter in bench.letters()} == {f"the schema registry has no schema {newest + 1}"}


# Protobuf and JSON


def file(**more: int) -> descriptor_pb2.FileDescriptorProto:
    """A file with two messages; the second is ours, with other fields for a later version."""
    kind = descriptor_pb2.FieldDescriptorProto
    made = descriptor_pb2.FileDescriptorProto(name=f"click{len(more)}.proto", package=f"shop{len(more)}", syntax="proto3")
    made.dependency.append("google/protobuf/timestamp.proto")
    made.message_type.add(name="Other")
    message = made.message_type.add(name="Click")
    at = ".google.protobuf.Timestamp"
    message.field.add(name="at", number=1, type=kind.TYPE_MESSAGE, label=kind.LABEL_OPTIONAL, type_name=at)
    message.field.add(name="user", number=2, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    message.field.add(name="n", number=3, type=kind.TYPE_INT64, label=kind.LABEL_OPTIONAL)
    for name, number in more.items():
        message.field.add(name=name, number=number, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    return made


def message_class(made: descriptor_pb2.FileDescriptorProto, name: str = "Click") -> Any:
    pool = descriptor_pool.DescriptorPool()
    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    pool.Add(known)
    pool.Add(made)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{made.package}.{name}"))


def test_protobuf_records_are_rows_by_the_message_that_they_name(
    make_bench: Callable[..., Bench], alive: RegistryServer, client: SchemaRegistryClient
) -> None:
    bench = make_bench(format="protobuf")
    start(bench, alive.url)
    context = SerializationContext(bench.topic, MessageField.VALUE)
    options = {"use.deprecated.format": False, "skip.known.types": True}
    values: list[bytes | None] = []
    for version, numbers in ((file(), range(20)), (file(shop=4), range(20, 30))):
        kind = message_class(version)
        # A subject for each: the two are different messages, and not versions of one.
        strategy = partial("{}-{}-{}".format, bench.topic, version.package)
        serialize = ProtobufSerializer(kind, client, {**options, "subject.name.strategy": strategy})
        for n in numbers:
            row = kind(user=f"u{n % 7}", n=n)
            row.at.FromDatetime(click(n)["at"].replace(tzinfo=None))
            values.append(serialize(row, context))
    assert values[0] is not None
    broken = values[0][:-1]
    send(bench, [*values[:5], broken, b"\0\0\0\0\0", *values[5:]])
    bench.wait_rows(30)
    bench.wait(lambda: len(bench.letters()) == 2, "letters")
    assert of_columns(bench, "n", "user") == [(n, f"u{n % 7}") for n in range(30)]
    number = int.from_bytes(values[0][1:5])
    assert bench.letters()[0]["reason"].startswith(f"not a shop0.Click of schema {number}")


def test_protobuf_schemas_that_a_registry_has_as_text_are_compiled_with_what_they_import(
    make_bench: Callable[..., Bench], alive: RegistryServer, client: SchemaRegistryClient
) -> None:
    """As Confluent's serializer in Java registers them, which this registry gives as they are."""
    pytest.importorskip("grpc_tools")
    bench = make_bench(format="protobuf", schema={"user": {"type": "string", "path": "who.user"}, "n": "int"})
    who = f"{bench.name}/who.proto"
    inner = 'syntax = "proto3"; package shop9; message Who { string user = 1; }'
    text = f"""
        syntax = "proto3"; package shop9;
        import "google/protobuf/timestamp.proto"; import "{who}";
        message Click {{ google.protobuf.Timestamp at = 1; Who who = 2; int64 n = 3; }}
    """
    client.register_schema(f"{bench.topic}-who", Schema(inner, "PROTOBUF"))
    reference = SchemaReference(who, f"{bench.topic}-who", 1)
    id_ = client.register_schema(f"{bench.topic}-value", Schema(text, "PROTOBUF", [reference]))
    start(bench, alive.url)
    kind = message_class(file())
    values: list[bytes | None] = []
    for n in range(20):
        row = kind(user=f"\n\2u{n % 7}", n=n)  # as bytes, a Who
        row.at.FromDatetime(click(n)["at"].replace(tzinfo=None))
        values.append(b"\0" + id_.to_bytes(4) + b"\0" + row.SerializeToString())
    send(bench, values)
    bench.wait_rows(20)
    assert of_columns(bench, "n", "user") == [(n, f"u{n % 7}") for n in range(20)] and not bench.letters()


def test_json_records_with_the_id_of_a_schema_are_rows(
    make_bench: Callable[..., Bench], alive: RegistryServer, client: SchemaRegistryClient
) -> None:
    bench = make_bench(format="json_schema")
    start(bench, alive.url)
    types = {"at": "integer", "user": "string", "n": "integer"}
    content = {"title": "Click", "type": "object", "properties": {name: {"type": kind} for name, kind in types.items()}}
    serialize = JSONSerializer(json.dumps(content), client)
    context = SerializationContext(bench.topic, MessageField.VALUE)
    rows = [serialize({"at": n, "user": f"u{n}", "n": n}, context) for n in range(20)]
    mark = rows[0][:5]
    send(bench, [*rows[:5], mark + b'{"n": "many", "at": 4}', b"\0\0\x0f\x42\x3f{}", *rows[5:]])
    bench.wait_rows(20)
    bench.wait(lambda: len(bench.letters()) == 2, "letters")
    assert sorted(bench.rows()) == list(range(20))
    reasons = [letter["reason"] for letter in bench.letters()]
    assert reasons == ["column n: 'many' is not an int", "the schema registry has no schema 999999"]


# Results


COLUMNS: dict[str, Type | str] = {
    "name": "string", "n": "int", "v": "double", "ok": "bool", "seen": "timestamp", "day": "date", "price": "decimal(9, 2)",
}  # fmt: skip
ROW = {
    "name": "é", "n": -(1 << 63), "v": 0.1, "ok": False, "seen": datetime(2013, 1, 1, 12, 0, 0, 5, tzinfo=UTC),
    "day": date(2013, 1, 31), "price": Decimal("-19.90"),
}  # fmt: skip


def results(first_id: int, count: int, tentative: bool = False, epoch: int = 0) -> Data:
    """Rows of all types; every third has nulls."""
    schema = PlanSchema.of(COLUMNS)
    nothing = dict.fromkeys(ROW)
    rows = [{"time": n, **(nothing if n % 3 == 2 else ROW), "name": f"k{n}"} for n in range(first_id, first_id + count)]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema.arrow)
    return Data(Origin("r0", 1), epoch, first_id, batch, tentative, ((1, 0),), 0, ("jfk",) if tentative else ())


@pytest.fixture
def make_life(kafka: KafkaServer, fresh_name: str, alive: RegistryServer) -> Iterator[Callable[..., Life]]:
    cluster = cluster_of(kafka)
    ensure(cluster, [TopicSpec(f"{fresh_name}.{which}", 1) for which in ("out", "stable", "records")])
    made: list[Life] = []

    def make(format: str, **more: Any) -> Life:
        made.append(Life(cluster, fresh_name, registry=alive.url, format=format, **{"schema": PlanSchema.of(COLUMNS), **more}))
        return made[-1]

    yield make
    for life in made:
        life.close()


def records(life: Life) -> list[Any]:
    return records_of(life.cluster, f"{life.name}.records", read_committed=True)


def waits_for(life: Life) -> str | None:
    assert life.records is not None
    return life.records.waits_for


@pytest.mark.parametrize("format", ["avro", "protobuf", "json_schema"])
def test_final_rows_are_read_by_confluents_deserializers(
    make_life: Callable[..., Life], client: SchemaRegistryClient, format: str
) -> None:
    first = make_life(format)
    first.give(results(0, 3), boundary(100, 3), results(3, 2, tentative=True), Undo(Origin("r0", 1), 1, 2))
    first.settle()
    wait_until(lambda: len(records(first)) == 3, "the stable rows")
    first.close()
    second = make_life(format)
    second.give(results(3, 4, epoch=second.epoch))
    wait_until(lambda: len(records(second)) == 7, "those of the second life")
    found = records(second)
    assert [int(dict(record.headers)["id"]) for record in found] == [*range(7)]
    assert [record.key for record in found] == [f'"k{n}"'.encode() for n in range(7)]
    topic = f"{second.name}.records"
    assert client.get_versions(f"{topic}-value") == [1], "the schema is registered once"
    context = SerializationContext(topic, MessageField.VALUE)
    time = datetime(1970, 1, 1, tzinfo=UTC)
    for n, record in enumerate(found):
        wanted = {**(dict.fromkeys(ROW) if n % 3 == 2 else ROW), "name": f"k{n}", "time": time + timedelta(microseconds=n)}
        if format == "avro":
            assert AvroDeserializer(client)(record.value, context) == wanted
            continue
        if format == "json_schema":
            # It holds the row against the schema that the registry has.
            row = JSONDeserializer(None, schema_registry_client=client)(record.value, context)
            assert row == json.loads(records_of(second.cluster, f"{second.name}.stable", read_committed=True)[n].value)
            assert row == {**{name: row[name] for name in wanted}, "name": f"k{n}"} and (row["n"] is None) == (n % 3 == 2)
            continue
        kind = message_class(protobuf_file("q", PlanSchema.of(COLUMNS)), "q")
        message = ProtobufDeserializer(kind, {}, client)(record.value, context)
        got = {name: getattr(message, name) if message.HasField(name) else None for name in wanted if name != "time"}
        seen = got["seen"] and got["seen"].ToDatetime(UTC)
        assert {**got, "seen": seen, "time": message.time.ToDatetime(UTC)} == {
            **wanted, **{name: wanted[name] and str(wanted[name]) for name in ("day", "price")},
        }  # fmt: skip
    assert not first.codes and not second.codes


@pytest.mark.soak
def test_rows_wait_for_a_registry_that_is_down_and_all_other_topics_go_on(
    make_life: Callable[..., Life], alive: RegistryServer
) -> None:
    alive.kill()
    life = make_life("avro")
    life.give(results(0, 5), boundary(100, 5))
    life.settle()
    assert stable_of(life.cluster, f"{life.name}.stable")[0] == [*range(5)], "q.stable waits for nothing"
    wait_until(lambda: waits_for(life), "it says what it waits for")
    assert f"schema registry main at {alive.url}, for the schema of {life.name}.records-value: " in str(waits_for(life))
    assert not records(life)
    alive.start()
    wait_until(lambda: len(records(life)) == 5, "the rows that have waited")
    assert waits_for(life) is None
    alive.kill()
    life.give(results(5, 5))
    wait_until(lambda: len(records(life)) == 10, "rows of a schema that is registered need no registry")
    assert waits_for(life) is None and not life.codes


@pytest.mark.soak
def test_a_registry_that_refuses_the_schema_is_waited_for_and_named(
    make_life: Callable[..., Life], client: SchemaRegistryClient, fresh_name: str
) -> None:
    subject = f"{fresh_name}.records-value"
    other = {"type": "record", "name": "q", "namespace": "boreal", "fields": [{"name": "n", "type": "string"}]}
    client.register_schema(subject, Schema(json.dumps(other), "AVRO"))
    client.set_compatibility(subject, level="BACKWARD")
    life = make_life("avro")
    life.give(results(0, 5))
    wait_until(lambda: waits_for(life), "it says what it waits for")
    assert f"for the schema of {subject}: " in str(waits_for(life)) and "409" in str(waits_for(life))
    client.set_compatibility(subject, level="NONE")
    wait_until(lambda: len(records(life)) == 5, "the rows that have waited")
    assert not life.codes


def of_version(first_id: int, count: int, columns: dict[str, Any], epoch: int) -> Data:
    ids = range(first_id, first_id + count)
    rows = [{"time": n, **dict.fromkeys(columns, n), "name": f"k{n}"} for n in ids]
    batch = pa.RecordBatch.from_pylist(rows, schema=PlanSchema.of(columns).arrow)
    return Data(Origin("r0", 1), epoch, first_id, batch, False, ((1, 0),), 0)


@pytest.mark.parametrize("format", every(3, ["avro", "protobuf", "json_schema"]))
def test_a_version_with_other_columns_has_a_schema_of_its_own_and_one_that_comes_back_its_former_one(
    make_life: Callable[..., Life], alive: RegistryServer, client: SchemaRegistryClient, format: str
) -> None:
    """Readers with the schema of either version read all rows. Those of a version whose schema cannot be registered yet wait,
    and the others before them do not."""
    narrow, wide = {"name": "string", "n": "int"}, {"m": "int", "name": "string", "n": "int"}
    versions = {1: narrow, 2: wide}
    schemas = {number: PlanSchema.of(columns) for number, columns in versions.items()}
    given = 0

    def live(version: int, count: int) -> Life:
        nonlocal given
        life = make_life(format, schema=schemas[version], version=version, others=schemas)
        life.give(of_version(given, count, versions[version], life.epoch))
        given += count
        return life

    first = live(1, 3)
    wait_until(lambda: len(records(first)) == 3, "rows of the first version")
    first.close()
    alive.kill()
    second = live(2, 3)
    wait_until(lambda: waits_for(second), "its rows wait for the registry")
    second.settle()
    second.close()
    third = live(1, 3)
    third.settle()
    assert len(records(third)) == 3 and waits_for(third) is not None
    alive.start()
    wait_until(lambda: len(records(third)) == 9, "the rows that have waited")
    third.close()
    topic = f"{third.name}.records"
    assert client.get_versions(f"{topic}-value") == [1, 2]
    found = records(third)
    assert [int(dict(record.headers)["id"]) for record in found] == list(range(9))
    assert [int(dict(record.headers)["version"]) for record in found] == [1, 1, 1, 2, 2, 2, 1, 1, 1]
    context = SerializationContext(topic, MessageField.VALUE)
    for version, columns in versions.items():
        if format == "avro":
            of_schema = client.get_version(f"{topic}-value", version).schema.schema_str
            read: Callable[[bytes], Any] = partial(AvroDeserializer(client, of_schema), ctx=context)
        elif format == "json_schema":
            read = partial(JSONDeserializer(None, schema_registry_client=client), ctx=context)
        else:
            earlier = [schemas[1]] if version == 2 else []
            kind = message_class(protobuf_file("q", schemas[version], earlier), "q")
            deserialize = ProtobufDeserializer(kind, {}, client)

            def read(value: bytes, of: Any = deserialize, names: Any = tuple(columns)) -> Any:
                message = of(value, context)
                return {name: getattr(message, name) if message.HasField(name) else None for name in names}

        for n, record in enumerate(found):
            row, has_m = read(record.value), 3 <= n < 6
            is_shown = version == 2 or format == "json_schema"  # JSON's readers see what the row has, whatever they know
            assert (row["name"], row["n"], row.get("m")) == (f"k{n}", n, n if has_m and is_shown else None)


# What is told when a query is applied


def query_of(name: str, **stream: Any) -> Any:
    given = {"topic": f"in.{name}", "format": "avro", "time": "at", "schema": {"at": "timestamp", **NAMES}, **stream}
    operators = {"f": {"filter": "s", "where": "n > 0"}}
    return load_query({"name": "q", "streams": {"s": given}, "operators": operators, "output": "f"})


def settings_of(url: str) -> ServiceSettings:
    sites = {"a": {"bootstrap": f"{HOST}:9092"}}
    return ServiceSettings.model_validate({"sites": sites, "registries": {"main": RegistrySettings(url=url)}})


def test_a_query_is_held_against_the_newest_schema_where_the_registry_answers(
    alive: RegistryServer, client: SchemaRegistryClient, fresh_name: str
) -> None:
    settings = settings_of(alive.url)
    check_schemas(query_of(fresh_name), settings)  # the topic has no schema yet
    client.register_schema(f"in.{fresh_name}-value", Schema(avro(), "AVRO"))
    check_schemas(query_of(fresh_name), settings)
    misspelt = query_of(fresh_name, schema={"at": "timestamp", "usr": "string", "n": "int"})
    with pytest.raises(UserError, match=r"streams\.s\.schema\.usr.*has no field usr"):
        check_schemas(misspelt, settings)
    check_schemas(query_of(fresh_name, schema={"usr": "string", "n": "int"}, lacking="nulls"), settings)
    with pytest.raises(UserError, match=r"streams\.s\.time.*no field when"):
        check_schemas(query_of(fresh_name, time="when"), settings)
    strict = query_of(fresh_name, schema={"user": "int", "n": "int"}, types="refuse")
    with pytest.raises(UserError, match=r"streams\.s\.schema\.user.*is a text"):
        check_schemas(strict, settings)
    with pytest.raises(UserError, match=r"streams\.s\.format.*write format: avro"):
        check_schemas(query_of(fresh_name, format="protobuf"), settings)
    check_schemas(misspelt, settings_of(f"http://{HOST}:{free_port()}"))  # nobody answers: records will tell


def test_a_query_without_its_registry_is_refused(fresh_name: str) -> None:
    nowhere = ServiceSettings.model_validate({"sites": {"a": {"bootstrap": f"{HOST}:9092"}}})
    with pytest.raises(UserError, match="BOREAL_REGISTRIES__MAIN__URL"):
        check_registries(query_of(fresh_name), nowhere)
    with pytest.raises(UserError, match=r"streams\.s\.registry.*'other'.*BOREAL_REGISTRIES__OTHER__URL"):
        check_registries(query_of(fresh_name, registry="other"), settings_of("http://127.0.0.1:1"))


def test_an_address_that_is_no_registry_is_waited_for_and_nothing_is_refused(alive: RegistryServer) -> None:
    wrong = Registry("main", RegistrySettings(url=f"http://{HOST}:{alive.port}/nothing"), "avro")
    with pytest.raises(RegistryError, match="404"):
        wrong.find(1)
    assert Registry("main", RegistrySettings(url=alive.url), "avro").find(999_999) is None
