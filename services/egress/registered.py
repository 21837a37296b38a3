"""Rows as Confluent's serializers write them: the id of their schema, and then Avro, Protobuf or JSON. The schema of each
version of the query is registered once, with its first row, under the usual subject `TOPIC-value`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from boreal.model.schema import Schema
from formats.typed_rows import avro_schema, json_schema, protobuf_file, protobuf_message, row_reader
from services.egress.plain_form import schema_of
from services.hosting.registry import Registry, RegistryError

_SUBJECT = {"subject.name.strategy.type": "TOPIC"}


@dataclass(slots=True)
class _Version:
    """The records of one version of the query."""

    read: Callable[[bytes], dict[str, Any]]
    serialize: Callable[[Any, Any], bytes]
    is_registered: bool = False


class RegisteredForm:
    """The records of one topic."""

    def __init__(
        self, registry: Registry, format: str, topic: str, query: str, schemas: Callable[[], Mapping[int, Schema]]
    ) -> None:
        """registry: closed with this. format: `avro`, `protobuf` or `json_schema`. schemas: by version of the query, the lowest
        first, as far as they are known now."""
        from confluent_kafka.serialization import MessageField, SerializationContext

        self._registry = registry
        self._subject = f"{topic}-value"
        self._context = SerializationContext(topic, MessageField.VALUE)
        self._query = query
        self._make = _SERIALIZERS[format]
        self._is_json = format == "json_schema"
        self._schemas = schemas
        self._versions: dict[int, _Version] = {}

    def value(self, row: bytes, version: int) -> bytes:
        """See `RecordForm`. RegistryError if the schema of the version is not registered yet, and cannot be now."""
        found = self._versions.get(version) or self._version(version)
        values = found.read(row)
        if found.is_registered:
            return found.serialize(values, self._context)
        try:
            made = found.serialize(values, self._context)
        except Exception as error:  # what the client and its HTTP client run into
            why = str(error) or type(error).__name__
            raise RegistryError(f"{self._registry}, for the schema of {self._subject}: {why}") from None
        found.is_registered = True
        return made

    def close(self) -> None:
        self._registry.close()

    def _version(self, version: int) -> _Version:
        schemas = self._schemas()
        schema, earlier = schema_of(schemas, version), [each for of, each in schemas.items() if of < version]
        read = json.loads if self._is_json else row_reader(schema)
        made = _Version(read, self._make(self._registry.client, self._query, schema, earlier))
        self._versions[version] = made
        return made


def _avro(client: Any, query: str, schema: Schema, earlier: Sequence[Schema]) -> Callable[[Any, Any], bytes]:
    from confluent_kafka.schema_registry.avro import AvroSerializer

    return AvroSerializer(client, avro_schema(query, schema), conf=_SUBJECT)


def _protobuf(client: Any, query: str, schema: Schema, earlier: Sequence[Schema]) -> Callable[[Any, Any], bytes]:
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    pool.Add(known)
    pool.Add(protobuf_file(query, schema, earlier))
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"boreal.{query}"))
    serialize = ProtobufSerializer(kind, client, conf=_SUBJECT)
    return lambda values, context: serialize(protobuf_message(kind, values), context)


def _json_schema(client: Any, query: str, schema: Schema, earlier: Sequence[Schema]) -> Callable[[Any, Any], bytes]:
    from confluent_kafka.schema_registry.json_schema import JSONSerializer

    # The rows are made by the same types as the schema.
    return JSONSerializer(json_schema(query, schema), client, conf={**_SUBJECT, "validate": False})


_SERIALIZERS = {"avro": _avro, "protobuf": _protobuf, "json_schema": _json_schema}
"""How rows of a version are written, by the format."""
