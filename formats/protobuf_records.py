"""Protobuf records to columns, by the message that their writer's schema declares."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message

from boreal.query.columns import Path, path_text
from formats.record_parsing import RawColumns, RecordShape, shown
from formats.writer_schema import Decode, SchemaProblem, WriterSchema, lacking, refuse_other_kind

_Value = Callable[[Any], Any]
"""The value of a field in the message that has it; None where it is not set."""


def protobuf_decode(schema: WriterSchema, shape: RecordShape, owner: str, place: Sequence[int]) -> Decode:
    """How records of a message become a stream's columns. place: its index in its file, after those of the messages around it.
    SchemaProblem if they cannot."""
    message = message_at(schema, owner, place)
    read: dict[str, tuple[_Value, pa.DataType] | None] = {}
    for name, path in shape.places.items():
        read[name] = _reading(message, path, name, owner, shape)
    return _ProtobufRecords(message, read, f"{message.full_name} of {owner}").decode


def message_at(schema: WriterSchema, owner: str, place: Sequence[int]) -> Descriptor:
    """A message of a schema. SchemaProblem if there is none."""
    pool = descriptor_pool.DescriptorPool()
    for file in _WELL_KNOWN.values():
        known = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(known)
        pool.Add(known)
    try:
        for name, text in schema.references:
            if name not in _WELL_KNOWN:
                pool.Add(_file(text, name))
        pool.Add(_file(schema.text, owner))
        found = pool.FindFileByName(owner)
    except SchemaProblem:
        raise
    except (TypeError, ValueError, KeyError, DecodeError) as error:
        raise SchemaProblem(f"{owner} is no Protobuf descriptor: {shown(str(error))}") from None
    messages: Sequence[Descriptor] = list(found.message_types_by_name.values())
    message: Descriptor | None = None
    for index in place:
        if not 0 <= index < len(messages):
            raise SchemaProblem(f"{owner} has no message {'.'.join(map(str, place))}")
        message = messages[index]
        messages = message.nested_types
    if message is None:
        raise SchemaProblem(f"{owner}: records do not say which message they are")
    return message


def messages_of(schema: WriterSchema, owner: str) -> int:
    """How many messages a schema declares, without those inside of others. SchemaProblem."""
    return len(_file(schema.text, owner).message_type)


def _file(text: str, name: str) -> descriptor_pb2.FileDescriptorProto:
    """A file's descriptor under another name."""
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (ValueError, DecodeError):
        raise SchemaProblem(f"{name} is neither a Protobuf descriptor nor a text that protoc compiles") from None
    file.name = name
    return file


# Fields


_PLAIN: dict[int, tuple[pa.DataType, str]] = {
    FieldDescriptor.CPPTYPE_INT32: (pa.int64(), "a number"),
    FieldDescriptor.CPPTYPE_INT64: (pa.int64(), "a number"),
    FieldDescriptor.CPPTYPE_UINT32: (pa.int64(), "a number"),
    FieldDescriptor.CPPTYPE_UINT64: (pa.uint64(), "a number"),
    FieldDescriptor.CPPTYPE_FLOAT: (pa.float64(), "a number"),
    FieldDescriptor.CPPTYPE_DOUBLE: (pa.float64(), "a number"),
    FieldDescriptor.CPPTYPE_BOOL: (pa.bool_(), "a bool"),
    FieldDescriptor.CPPTYPE_STRING: (pa.string(), "a text"),
    FieldDescriptor.CPPTYPE_ENUM: (pa.string(), "a text"),
}


def _reading(
    message: Descriptor, path: Path, name: str, owner: str, shape: RecordShape
) -> tuple[_Value, pa.DataType] | None:
    """How to read what is at a path, and its type; None if there is no such field."""
    steps: list[_Value] = []
    at: Descriptor = message
    place = 0
    while True:
        step = path[place]
        field = at.fields_by_name.get(step) if isinstance(step, str) else None
        if field is None:
            lacking(shape, name, path_text(path[: place + 1]), owner)
            return None
        place += 1
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            raise SchemaProblem(f"{path_text(path[:place])} is a map in {owner}, and so no plain value", name)
        if field.is_repeated:
            item = path[place] if place < len(path) else None
            if not isinstance(item, int):
                raise SchemaProblem(f"{path_text(path[:place])} is an array in {owner}, and so no plain value", name)
            place += 1
            steps.append(_item(field, item))
        else:
            steps.append(_field(field))
        if place == len(path):
            value, kind = _leaf(field, name, owner, shape)
            return _chain([*steps, *([value] if value is not None else [])]), kind
        if inner is None or isinstance(path[place], int):
            what = "an object" if isinstance(path[place], str) else "an array"
            raise SchemaProblem(f"{path_text(path[:place])} is not {what} in {owner}", name)
        at = inner


def _field(field: FieldDescriptor) -> _Value:
    name = field.name
    if field.has_presence:
        return lambda message: getattr(message, name) if message.HasField(name) else None
    return lambda message: getattr(message, name)


def _item(field: FieldDescriptor, place: int) -> _Value:
    name = field.name

    def value(message: Any) -> Any:
        items = getattr(message, name)
        return items[place] if place < len(items) else None

    return value


def _chain(steps: Sequence[_Value]) -> _Value:
    if len(steps) == 1:
        return steps[0]

    def value(found: Any) -> Any:
        for step in steps:
            if found is None:
                return None
            found = step(found)
        return found

    return value


def _leaf(field: FieldDescriptor, name: str, owner: str, shape: RecordShape) -> tuple[_Value | None, pa.DataType]:
    """How a field's value becomes that of a column, if it is not that itself, and its type."""
    message = field.message_type
    if message is not None:
        if message.full_name in _MESSAGES:
            return _MESSAGES[message.full_name]
        if message.full_name in _WRAPPERS:
            _, kind = _leaf(message.fields_by_name["value"], name, owner, shape)
            return (lambda wrapper: wrapper.value), kind
        raise SchemaProblem(f"is a {message.full_name} in {owner}, and so no plain value", name)
    if field.type == FieldDescriptor.TYPE_BYTES:
        raise SchemaProblem(f"is of the type bytes in {owner}, and so no plain value", name)
    kind, given = _PLAIN[field.cpp_type]
    refuse_other_kind(shape, name, given)
    if field.enum_type is not None:
        names: Mapping[int, Any] = field.enum_type.values_by_number
        return (lambda number: names[number].name if number in names else str(number)), kind
    return None, kind


def _microseconds(time: Any) -> int:
    return int(time.seconds * 1_000_000 + time.nanos // 1_000)


_MESSAGES: dict[str, tuple[_Value, pa.DataType]] = {
    "google.protobuf.Timestamp": (_microseconds, pa.timestamp("us", "UTC")),
}
"""Messages that are plain values."""
_WRAPPERS = {
    f"google.protobuf.{kind}Value" for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String")
}
_WELL_KNOWN: dict[str, FileDescriptor] = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
}
"""The files that every schema may import without a reference to them."""


# Records


class _ProtobufRecords:
    """Records of one message."""

    def __init__(
        self, message: Descriptor, read: Mapping[str, tuple[_Value, pa.DataType] | None], owner: str
    ) -> None:
        self._parse: Callable[[bytes], Message] = message_factory.GetMessageClass(message).FromString
        self._read = read
        self._owner = owner

    def decode(self, payloads: Sequence[bytes]) -> tuple[RawColumns, dict[int, str]]:
        """See `Decode`."""
        try:
            return self._columns([self._parse(payload) for payload in payloads]), {}
        except (DecodeError, ValueError, ArithmeticError, pa.ArrowInvalid):
            return self._one_by_one(payloads)

    def _columns(self, messages: Sequence[Message]) -> RawColumns:
        columns: dict[str, pa.Array] = {}
        for name, found in self._read.items():
            if found is None:
                columns[name] = pa.nulls(len(messages))
            else:
                value, kind = found
                columns[name] = pa.array([value(message) for message in messages], kind)
        return columns

    def _one_by_one(self, payloads: Sequence[bytes]) -> tuple[RawColumns, dict[int, str]]:
        good: list[Message] = []
        broken: dict[int, str] = {}
        for place, payload in enumerate(payloads):
            try:
                message = self._parse(payload)
                self._columns([message])
                good.append(message)
            except (DecodeError, ValueError, ArithmeticError, pa.ArrowInvalid) as error:
                broken[place] = f"not a {self._owner}: {shown(str(error))}"
        return self._columns(good), broken
