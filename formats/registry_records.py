"""Records with the id of their writer's schema, as the serializers of clients with a schema registry write them:

    byte 0       0
    bytes 1-4    the id of the schema, the highest byte first
    then         Protobuf: where in its file the message is declared, as a list of numbers
    then         the payload: Avro, Protobuf or JSON

What a record becomes follows from its bytes and from what its id stands for, which never changes. Only whether the registry
knew an id may be different later; so `unknown` is passed in, and part of a batch's announcement (intake.place).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pyarrow as pa

from boreal.query.shapes import Stream
from formats.record_parsing import (
    ParsedRows,
    RawColumns,
    RecordShape,
    merged,
    read_all,
    read_each,
    read_records,
    unknown_beside,
)
from formats.writer_schema import ID_END, MAGIC, Decode, SchemaProblem, WriterSchema

KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON"}
"""The kind of a stream's schemas, by its `format`."""

_Group = tuple[int, bytes]
"""Records that are decoded together: the id of their schema, and for Protobuf the message's place in its file."""


class SchemaBook:
    """The schemas that are known, and the records of one stream that were written by them."""

    def __init__(self, format: str) -> None:
        """format: one of KINDS."""
        self._format = format
        self._schemas: dict[int, WriterSchema] = {}
        self._decodes: dict[tuple[_Group, bool, bool], Decode | str] = {}

    @staticmethod
    def of(stream: Stream) -> SchemaBook | None:
        """An empty one for a stream; None for a stream without schemas."""
        return SchemaBook(stream.format) if stream.format in KINDS else None

    def learn(self, id_: int, schema: WriterSchema) -> None:
        """Take what an id stands for."""
        self._schemas[id_] = schema

    def lacking(self, records: Iterable[bytes | None]) -> list[int]:
        """The ids of these records whose schemas are not known yet."""
        prefixes = {record[:ID_END] for record in records if record}
        ids = {int.from_bytes(prefix[1:]) for prefix in prefixes if _has_id(prefix)}
        return sorted(ids - self._schemas.keys())

    def read(
        self,
        shape: RecordShape,
        records: Sequence[bytes | None],
        beside: RawColumns | None = None,
        unknown: Collection[int] = (),
    ) -> ParsedRows:
        """The rows of records, and a reason for each that is none. unknown: ids that the registry does not know; the schemas
        of all others must have been learnt. beside: as in `read_records`."""
        given = unknown_beside(shape, len(records)) if beside is None else beside
        groups, reasons = self._groups(records)
        parts: list[tuple[np.ndarray, ParsedRows]] = []
        for group, places in sorted(groups.items()):
            decode = self._decode(group, shape, unknown)
            if isinstance(decode, str):
                reasons.update(dict.fromkeys(places, decode))
                continue
            at = np.array(places)
            chosen = [record for place in places if (record := records[place]) is not None]
            columns = given if len(places) == len(records) else {name: of.take(pa.array(at)) for name, of in given.items()}
            parts.append((at, self._rows(shape, group, chosen, columns, decode)))
        return merged(shape, parts, reasons)

    def _groups(self, records: Sequence[bytes | None]) -> tuple[dict[_Group, list[int]], dict[int, str]]:
        """The places of records by their group, and why the others are in none."""
        found: dict[bytes | None, list[int]] = {}
        if self._format == "protobuf":
            for place, record in enumerate(records):
                found.setdefault(None if record is None else record[: _message_end(record)], []).append(place)
        else:
            for place, record in enumerate(records):
                found.setdefault(None if record is None else record[:ID_END], []).append(place)
        groups: dict[_Group, list[int]] = {}
        reasons: dict[int, str] = {}
        for prefix, places in found.items():
            if prefix and _has_id(prefix):
                groups[int.from_bytes(prefix[1:ID_END]), prefix[ID_END:]] = places
            else:
                reasons.update(dict.fromkeys(places, "no value" if prefix is None else _NO_ID))
        return groups, reasons

    def _decode(self, group: _Group, shape: RecordShape, unknown: Collection[int]) -> Decode | str:
        """How the records of a group become columns, or why they are no rows."""
        id_, _ = group
        if id_ in unknown:
            return f"the schema registry has no schema {id_}"
        key = (group, shape.strict, shape.fills)
        if key not in self._decodes:
            try:
                self._decodes[key] = self._made(group, shape)
            except SchemaProblem as problem:
                self._decodes[key] = str(problem)
        return self._decodes[key]

    def _made(self, group: _Group, shape: RecordShape) -> Decode:
        id_, message = group
        schema = self._schemas[id_]
        if schema.kind != KINDS[self._format]:
            raise SchemaProblem(f"schema {id_} is of the type {schema.kind}, and the stream's format is {self._format}")
        return make_decode(self._format, schema, shape, f"schema {id_}", message)

    def _rows(
        self, shape: RecordShape, group: _Group, records: Sequence[bytes], beside: RawColumns, decode: Decode
    ) -> ParsedRows:
        begin = ID_END + len(group[1])
        payloads = [record[begin:] for record in records]
        if self._format == "json_schema":
            return read_records(shape, payloads, beside)
        columns, broken = decode(payloads)
        if not broken:
            given = {**columns, **beside}
            return read_all(shape, given) or read_each(shape, given)
        good = np.delete(np.arange(len(payloads)), list(broken))
        given = {**columns, **{name: of.take(pa.array(good)) for name, of in beside.items()}}
        return merged(shape, [(good, read_all(shape, given) or read_each(shape, given))], broken)


def make_decode(format: str, schema: WriterSchema, shape: RecordShape, owner: str, message: bytes = b"") -> Decode:
    """How records of a schema become a stream's columns. owner: what reasons call the schema. message: the message's place in
    a Protobuf file, as a record has it. SchemaProblem if they cannot."""
    # The libraries are extras, and take their time to load.
    if format == "avro":
        from formats.avro_records import avro_decode

        return avro_decode(schema, shape, owner)
    if format == "protobuf":
        from formats.protobuf_records import protobuf_decode

        place = message_path(message)
        if place is None:
            raise SchemaProblem("the record does not say which message of its schema it is")
        return protobuf_decode(schema, shape, owner, place)
    return lambda payloads: ({}, {})


_NO_ID = "has no id of a schema: the first byte must be 0, and four more the id"


def _has_id(prefix: bytes) -> bool:
    return len(prefix) >= ID_END and prefix.startswith(MAGIC)


def _message_end(record: bytes) -> int:
    """Where the place of a record's message ends: numbers of seven bits a byte, the first of them how many follow."""
    if record[ID_END : ID_END + 1] == b"\0":
        return ID_END + 1  # in place of a list of one 0
    end, left = ID_END, 1
    is_count = True
    while left and end < len(record):
        begin = end
        while end < len(record) and record[end] & 0x80:
            end += 1
        end += 1
        left -= 1
        if is_count:
            is_count, left = False, min(_zigzag(record[begin:end]), len(record))
    return end


def message_path(place: bytes) -> tuple[int, ...] | None:
    """The indexes of a message and of those around it, the outermost first, as a record has them; None if they are none."""
    numbers: list[int] = []
    begin = 0
    for end, byte in enumerate(place, start=1):
        if not byte & 0x80:
            numbers.append(_zigzag(place[begin:end]))
            begin = end
    if numbers == [0]:
        return (0,)
    return tuple(numbers[1:]) if begin == len(place) and numbers and numbers[0] == len(numbers) - 1 else None


def _zigzag(data: bytes) -> int:
    value = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data[:10]))
    return value >> 1 if value & 1 == 0 else -(value >> 1) - 1
