"""Whether the records of streams have what a query reads of them, as far as their schema registry says: asked when a query is
applied, so that a misspelled column is reported at once, and not by a dead letter for each record."""

from __future__ import annotations

import json
from contextlib import closing

from boreal.model.errors import UserError
from boreal.query.records import REGISTERED
from boreal.query.spec import Query, Stream
from formats.record_parsing import RecordShape
from formats.registry_records import KINDS, make_decode
from formats.writer_schema import SchemaProblem, WriterSchema
from services.hosting.registry import Registry, RegistryError
from services.kafka.settings import ServiceSettings

_MOST_MESSAGES = 64
"""Of a file, that are looked at."""


def check_registries(query: Query, settings: ServiceSettings) -> None:
    """UserError if a stream, or the records of results, need a registry that the installation does not know."""
    if query.records is not None and query.records.format in REGISTERED:
        settings.registry_of("records.registry", query.records.registry)
    for name, stream in query.streams.items():
        if stream.format in KINDS:
            settings.registry_of(f"streams.{name}.registry", stream.registry)


def check_schemas(query: Query, settings: ServiceSettings) -> None:
    """UserError, with the column, if the newest schema of a stream's topic lacks a column, or has one of a type that cannot be
    read. Nothing is said of a topic without a schema yet, or of a registry that does not answer: records can wait for both."""
    for name, stream in query.streams.items():
        if stream.format not in KINDS or stream.topic is None:
            continue
        subject = f"{stream.topic}-value"
        named = settings.registry_of(f"streams.{name}.registry", stream.registry)
        with closing(Registry(*named, stream.format)) as registry:
            try:
                schema = registry.latest(subject)
            except RegistryError:
                continue
        if schema is not None:
            _check(name, stream, schema, f"the newest schema of {subject}")


def _check(name: str, stream: Stream, schema: WriterSchema, owner: str) -> None:
    if schema.kind != KINDS[stream.format]:
        formats = {kind: format for format, kind in KINDS.items()}
        fix = f"write format: {formats[schema.kind]}" if schema.kind in formats else "name the topic's own format"
        problem = f"is not that of {owner}, which is of the type {schema.kind}"
        raise UserError(f"streams.{name}.format", stream.format, problem, fix)
    try:
        _read_by(stream, schema, owner)
    except SchemaProblem as problem:
        kinds = {column: str(kind) for column, kind in stream.attributes.columns}
        fix = "name a field that it has, give the column its path, or register a schema that has it"
        column = f".schema.{problem.column}" if problem.column in stream.columns else ".time" if problem.column else ""
        value = kinds.get(problem.column, problem.column or None)
        raise UserError(f"streams.{name}{column}", value, problem.problem, fix) from None


def _read_by(stream: Stream, schema: WriterSchema, owner: str) -> None:
    """SchemaProblem if records of a schema cannot become rows of the stream."""
    shape = RecordShape.of(stream)
    if stream.format == "json_schema":
        _check_json(shape, schema, owner)
    elif stream.format == "avro":
        make_decode(stream.format, schema, shape, owner)
    else:
        from formats.protobuf_records import messages_of

        # A record says which message of the file it is. One of them must have the columns.
        problems: list[SchemaProblem] = []
        for index in range(min(messages_of(schema, owner), _MOST_MESSAGES)):
            try:
                make_decode(stream.format, schema, shape, owner, bytes([2, 2 * index]))
                return
            except SchemaProblem as problem:
                problems.append(problem)
        if problems:
            raise problems[0]


def _check_json(shape: RecordShape, schema: WriterSchema, owner: str) -> None:
    """Only a schema that allows no other fields than its own says that one is not there."""
    content = json.loads(schema.text)
    if not isinstance(content, dict) or content.get("additionalProperties") is not False:
        return
    for name, path in shape.places.items():
        if path[0] not in content.get("properties", {}):
            raise SchemaProblem(f"{owner} has no field {path[0]}, and allows none that it does not have", name)
