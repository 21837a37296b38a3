"""Asks a schema registry what ids stand for, with Confluent's client."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from boreal.model.errors import BorealError, UserError
from formats.writer_schema import WriterSchema
from services.hosting.proto_text import descriptor_of, is_text
from services.kafka.settings import RegistrySettings

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

ANSWERS_WITHIN_S = 2.0
NO_SCHEMA, NO_SUBJECT = 40403, 40401
"""What a registry says that it does not have. A 404 without one of these is not a registry's: its address is wrong."""
_MODULES = {"avro": "fastavro", "protobuf": "google.protobuf", "json_schema": "jsonschema"}


class RegistryError(BorealError):
    """The registry does not answer, or refuses to."""


class Registry:
    """One registry. UserError if what it needs is not installed."""

    def __init__(self, name: str, settings: RegistrySettings, format: str) -> None:
        """format: of the stream."""
        for module in ("authlib", "httpx2", _MODULES.get(format, "confluent_kafka"), "confluent_kafka"):
            if not _is_there(module):
                raise UserError("format", format, f"needs {module}, which is not installed", "pip install 'boreal[registry]'")
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self._name = name
        self._address = settings.url
        self._format = "serialized" if format == "protobuf" else None
        options: dict[str, object] = {"url": settings.url, "timeout": ANSWERS_WITHIN_S, "max.retries": 0}
        if settings.username is not None:
            password = settings.password.get_secret_value() if settings.password is not None else ""
            options["basic.auth.user.info"] = f"{settings.username}:{password}"
        if settings.ca_file is not None:
            options["ssl.ca.location"] = str(settings.ca_file)
        self.client = SchemaRegistryClient(options)

    def find(self, id_: int) -> WriterSchema | None:
        """What an id stands for; None if the registry has no such schema. RegistryError."""
        return self._found(lambda: self.client.get_schema(id_, fmt=self._format), NO_SCHEMA)

    def latest(self, subject: str) -> WriterSchema | None:
        """The newest schema of a subject; None if the registry has none. RegistryError."""
        return self._found(lambda: self.client.get_latest_version(subject, self._format).schema, NO_SUBJECT)

    def close(self) -> None:
        self.client.close()

    def _found(self, ask: Callable[[], Schema], absent: int) -> WriterSchema | None:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            schema = ask()
            found = WriterSchema(schema.schema_type or "AVRO", schema.schema_str or "", tuple(self._references(schema).items()))
            return _with_descriptors(found) if found.kind == "PROTOBUF" else found
        except SchemaRegistryError as error:
            if error.error_code == absent:
                return None
            raise RegistryError(f"{self}: {error}") from None
        except Exception as error:  # what the client and its HTTP client run into
            raise RegistryError(f"{self}: {error or type(error).__name__}") from None

    def _references(self, schema: Schema) -> dict[str, str]:
        """The texts of the schemas that this one refers to, by their names, each after those that it refers to."""
        found: dict[str, str] = {}
        for reference in schema.references or []:
            subject, version = cast(str, reference.subject), cast(int, reference.version)
            target = self.client.get_version(subject, version, fmt=self._format).schema
            found |= {**self._references(target), str(reference.name): target.schema_str or ""}
        return found

    def __str__(self) -> str:
        return f"schema registry {self._name} at {self._address}"


def _with_descriptors(schema: WriterSchema) -> WriterSchema:
    """A Protobuf schema with descriptors in the place of texts; one that does not compile stays. ProtoTextError."""
    texts = {name: text for name, text in schema.references if is_text(text)}
    if not texts and not is_text(schema.text):
        return schema

    def compiled(text: str) -> str:
        return (descriptor_of(text, texts) if is_text(text) else None) or text

    references = tuple((name, compiled(text)) for name, text in schema.references)
    return WriterSchema(schema.kind, compiled(schema.text), references)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of what it is in
        return False
