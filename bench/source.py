"""`boreal bench source`: what a source does with records, without Kafka: records in, encoded frames out.

One core's processor time, so what else runs on the machine counts for little. The records are those of `boreal bench stack`.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Mapping
from io import SEEK_END, BytesIO
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.ipc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from bench.figures import Figure, as_report
from bench.stack import SCHEMA, STREAMS, make_query, record_value
from boreal.model.codec import encode
from boreal.model.frames import Origin
from boreal.query.planner import plan
from boreal.query.spec import load_query
from formats.registry_records import KINDS, SchemaBook
from formats.writer_schema import WriterSchema
from intake.intake import Intake, SourceStream, form_of
from intake.place import SourcePlace
from intake.user_records import PartitionRecords
from services.source.incarnation import FRAME_ROWS

BATCHES, ROUNDS = 40, 5
BY_PATH = {
    "at": {"type": "timestamp", "path": "meta.at"},
    "key": {"type": "int", "path": "meta.items[0].key"},
    "value": {"type": "decimal(12, 3)", "path": "meta.items[0].value"},
}
HEADER = ["at", "key", "value"]
ODD_EVERY = 1_000
ROWS_OF_ARROW = 100
SCHEMA_ID = 7
FRAME_HEAD = b"\0" + SCHEMA_ID.to_bytes(4)
AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "key", "type": ["null", "long"]},
        {"name": "value", "type": "double"},
    ],
}
NOW_US = 1_800_000_000_000_000


def main() -> dict[str, Any]:
    """Measure all of it; half a minute."""
    values = [record_value(number) for number in range(BATCHES * FRAME_ROWS)]
    nested = [b'%s,"more":{"ids":[{"a":1},{"b":2}]}}\n' % value[:-1] for value in values]
    deep = [b'{"meta":{"at":%s,"items":[{%s}]}}' % tuple(value[6:-1].split(b",", 1)) for value in values]
    odd = [b"{" if number % ODD_EVERY == 0 else value for number, value in enumerate(values)]
    plain, avro, protobuf = _rate(values), _rate(_avro(), format="avro"), _rate(_protobuf(), format="protobuf")
    arrow = ROWS_OF_ARROW * _rate(_arrow(), format="arrow")
    figures = [
        Figure("records to frames", plain, "records/s", 600_000),
        Figure("records to frames, with nested objects and ends of lines", _rate(nested), "records/s"),
        Figure("records to frames, columns by path, one of them a decimal", _rate(deep, BY_PATH), "records/s"),
        Figure(f"records to frames, one in {ODD_EVERY} of them odd", _rate(odd), "records/s"),
        Figure("CSV records to frames", _rate(_csv(), format="csv"), "records/s", 300_000),
        Figure(f"Arrow records of {ROWS_OF_ARROW} rows to frames", arrow, "rows/s", 300_000),
        Figure("Avro records to frames", avro, "records/s", 300_000),
        Figure("Avro's rate over that of JSON", avro / plain, "", 0.5),
        Figure("Protobuf records to frames", protobuf, "records/s", 300_000),
        Figure("Protobuf's rate over that of JSON", protobuf / plain, "", 0.5),
        Figure("records out of a fetched batch, by kafka-python", _decoded(values), "records/s"),
    ]
    return as_report("source", figures)


def _csv() -> list[bytes]:
    """The same records in CSV."""
    rows = (json.loads(record_value(number)) for number in range(BATCHES * FRAME_ROWS))
    return [",".join(str(row[name]) for name in HEADER).encode() for row in rows]


def _arrow() -> list[bytes]:
    """The same rows as Arrow IPC streams."""
    rows = [json.loads(record_value(number)) for number in range(BATCHES * FRAME_ROWS)]
    records = []
    for first in range(0, len(rows), ROWS_OF_ARROW):
        batch = pa.RecordBatch.from_pylist(rows[first : first + ROWS_OF_ARROW])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        records.append(sink.getvalue().to_pybytes())
    return records


def _avro() -> list[bytes]:
    """The same records in Avro, after the id of their schema."""
    schema = fastavro.parse_schema(AVRO)
    records = []
    for number in range(BATCHES * FRAME_ROWS):
        file = BytesIO(FRAME_HEAD)
        file.seek(0, SEEK_END)
        fastavro.schemaless_writer(file, schema, json.loads(record_value(number)))
        records.append(file.getvalue())
    return records


def _protobuf() -> list[bytes]:
    """The same records in Protobuf, after the id of their schema and the place of their message."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_protobuf_file())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("Row"))
    rows = (json.loads(record_value(number)) for number in range(BATCHES * FRAME_ROWS))
    return [FRAME_HEAD + b"\0" + message(**row).SerializeToString() for row in rows]


def _protobuf_file() -> descriptor_pb2.FileDescriptorProto:
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="row.proto", syntax="proto3")
    row = file.message_type.add(name="Row")
    types = {"at": kind.TYPE_INT64, "key": kind.TYPE_INT64, "value": kind.TYPE_DOUBLE}
    for number, (name, type_) in enumerate(types.items(), start=1):
        row.field.add(name=name, number=number, type=type_, label=kind.LABEL_OPTIONAL)
    return file


def _book(format: str) -> SchemaBook | None:
    """What the ids of these records stand for."""
    if format not in KINDS:
        return None
    book = SchemaBook(format)
    descriptor = b64encode(_protobuf_file().SerializeToString()).decode()
    book.learn(SCHEMA_ID, WriterSchema("AVRO", json.dumps(AVRO)) if format == "avro" else WriterSchema("PROTOBUF", descriptor))
    return book


def _rate(values: list[bytes], schema: Mapping[str, Any] = SCHEMA, format: str = "json") -> float:
    """Records a second, the best of some rounds. schema: of the columns of SCHEMA."""
    made = make_query("bench")
    form = {"format": format, "csv": {"header": HEADER} if format == "csv" else None}
    stream_of = {stream: {**made["streams"][stream], "schema": schema, **form} for stream in STREAMS}
    query = load_query({**made, "streams": stream_of})
    name = STREAMS[0]
    stream = SourceStream.of(plan(query), name, query.streams[name], f"in.{name}")
    took = []
    for _ in range(ROUNDS):
        intake = Intake(stream, Origin("", 1), SourcePlace({f"{name}/0": 0}), _book(format), form_of(stream.spec))
        began = time.process_time()
        for first in range(0, len(values), FRAME_ROWS):
            records: list[bytes | None] = [*values[first : first + FRAME_ROWS]]
            taken = PartitionRecords(np.arange(first, first + len(records)), records)
            for _, frame in intake.take({0: taken}, NOW_US).frames:
                encode(frame)
        took.append(time.process_time() - began)
    return len(values) / min(took)


def _decoded(values: list[bytes]) -> float:
    builder = MemoryRecordsBuilder(2, 0, 1 << 30)
    for value in values:
        builder.append(NOW_US // 1_000, None, value)
    builder.close()
    data = builder.buffer()
    began = time.process_time()
    partition = Fetcher.PartitionRecords(0, TopicPartition("in", 0), MemoryRecords(data))
    assert len(PartitionRecords.of(partition.take(len(values)))) == len(values)
    return len(values) / (time.process_time() - began)
