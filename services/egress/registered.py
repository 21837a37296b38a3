"""Rows as Confluent's serializers write them: the id of their schema, and then Avro or Protobuf. The schema is registered
once, under the usual subject `TOPIC-value`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boreal.model.schema import Schema
from formats.typed_rows import avro_schema, protobuf_file, protobuf_message, row_reader
from services.hosting.registry import Registry, RegistryError

_SUBJECT = {"subject.name.strategy.type": "TOPIC"}


class RegisteredForm:
    """The records of one topic."""

    def __init__(self, registry: Registry, format: str, topic: str, query: str, schema: Schema) -> None:
        """registry: closed with this. format: `avro` or `protobuf`."""
        from confluent_kafka.serialization import MessageField, SerializationContext

        self._registry = registry
        self._subject = f"{topic}-value"
        self._context = SerializationContext(topic, MessageField.VALUE)
        self._read = row_reader(schema)
        self._serialize = (_avro if format == "avro" else _protobuf)(registry.client, query, schema)
        self._is_registered = False

    def value(self, row: bytes) -> bytes:
        """The record of a row, as q.stable has it. RegistryError if the schema is not registered yet, and cannot be now."""
        values = self._read(row)
        if self._is_registered:
            return self._serialize(values, self._context)
        try:
            made = self._serialize(values, self._context)
        except Exception as error:  # what the client and its HTTP client run into
            why = str(error) or type(error).__name__
            raise RegistryError(f"{self._registry}, for the schema of {self._subject}: {why}") from None
        self._is_registered = True
        return made

    def close(self) -> None:
        self._registry.close()


def _avro(client: Any, query: str, schema: Schema) -> Callable[[Any, Any], bytes]:
    from confluent_kafka.schema_registry.avro import AvroSerializer

    return AvroSerializer(client, avro_schema(query, schema), conf=_SUBJECT)


def _protobuf(client: Any, query: str, schema: Schema) -> Callable[[Any, Any], bytes]:
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    pool.Add(known)
    pool.Add(protobuf_file(query, schema))
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"boreal.{query}"))
    serialize = ProtobufSerializer(kind, client, conf=_SUBJECT)
    return lambda values, context: serialize(protobuf_message(kind, values), context)
