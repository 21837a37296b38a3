"""Changes of a table as Debezium writes them, in JSON with schemas, as Connect's converter reads and writes it by default.

    key      {"schema": ..., "payload": {"carrier": "AA"}}
    value    {"schema": ..., "payload": {"before": ROW, "after": ROW, "source": ..., "op": "u", "ts_ms": 1784900000000}}

`op` is `c` where a key had no row before, `u` where it had one, and `d` where it has none after; before and after are null
there. The schema is that of the version of the query that writes: a row of another version has the columns of this one, with
null where it has none of the same name and type. All columns are optional. A timestamp is a text,
`io.debezium.time.ZonedTimestamp`; a date is one too, `io.debezium.time.IsoDate`, and so is a decimal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from boreal.model.schema import TIME, WINDOW, Schema, Type
from formats.json_text import encode_json

VERSION = "1"
"""Of what `source` says here."""

_NULL = b"null"
_ROWS = b',"payload":{"before":'
"""What follows the schema of a value. No schema has it within: a name that is a value there follows a colon."""
_TYPES: dict[Type, dict[str, Any]] = {
    Type.STRING: {"type": "string"},
    Type.INT: {"type": "int64"},
    Type.DOUBLE: {"type": "double"},
    Type.BOOL: {"type": "boolean"},
    Type.TIMESTAMP: {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1},
    Type.DATE: {"type": "string", "name": "io.debezium.time.IsoDate", "version": 1},
}
_DECODER = json.JSONDecoder()


class DebeziumForm:
    """The envelopes of one query's output, written by one of its versions."""

    def __init__(self, query: str, schema: Schema, key: tuple[str, ...], others: Mapping[int, Schema] | None = None) -> None:
        """others: the schemas of versions of the query whose rows may have to be written too."""
        columns = _columns(schema)
        self._fields = _fields(schema)
        self._others = {version: _fields(other) for version, other in (others or {}).items()}
        row = [*self._fields.values()]
        self._single = key[0] if len(key) == 1 else None
        key_schema = _struct([_field(name, columns[name]) for name in key], f"boreal.{query}.Key")
        texts = ("version", "connector", "name", "db", "table", "snapshot")
        source = [{"field": name, "type": "string", "optional": False} for name in texts]
        source += [
            {"field": "ts_ms", "type": "int64", "optional": False},
            {"field": "id", "type": "int64", "optional": True},
            {"field": "tentative", "type": "boolean", "optional": False},
        ]
        value_schema = _struct(
            [
                {**_struct(row, f"boreal.{query}.Value"), "optional": True, "field": "before"},
                {**_struct(row, f"boreal.{query}.Value"), "optional": True, "field": "after"},
                {**_struct(source, "io.debezium.connector.boreal.Source"), "field": "source"},
                {"field": "op", "type": "string", "optional": False},
                {"field": "ts_ms", "type": "int64", "optional": True},
            ],
            f"boreal.{query}.Envelope",
        )
        self._key_head = f'{{"schema":{encode_json(key_schema)},"payload":'.encode()
        self._value_head = f'{{"schema":{encode_json(value_schema)}'.encode() + _ROWS
        names = dict.fromkeys(("name", "db", "table"), query)
        self._source = {"version": VERSION, "connector": "boreal", **names, "snapshot": "false"}

    def key(self, key: bytes) -> bytes:
        """The key of a record. key: as in the other topics, JSON: a plain value for one column, an object for several."""
        payload = key if self._single is None else b"{%s:%s}" % (encode_json(self._single).encode(), key)
        return b"%s%s}" % (self._key_head, payload)

    def plain_key(self, record_key: bytes) -> bytes:
        """What `key` was given."""
        payload = record_key[len(self._key_head) : -1]
        return payload if self._single is None else payload[len(encode_json(self._single)) + 2 : -1]

    def value(self, before: bytes | None, after: bytes | None, id_: int | None, tentative: bool, at_ms: int) -> bytes:
        """An envelope. before, after: rows as JSON, one of them at least. id_: of the key's last stable row."""
        op = "d" if after is None else "c" if before is None else "u"
        source = encode_json({**self._source, "ts_ms": at_ms, "id": id_, "tentative": tentative})
        tail = f',"source":{source},"op":"{op}","ts_ms":{at_ms}}}}}'.encode()
        return b'%s%s,"after":%s%s' % (self._value_head, before or _NULL, after or _NULL, tail)

    def row(self, value: bytes | None) -> bytes | None:
        """The row after a change, as JSON, of an envelope of `value`; None after a deletion, and for a tombstone."""
        if value is None:
            return None
        text = value[value.index(_ROWS) + len(_ROWS) :].decode()
        _, end = _DECODER.raw_decode(text)
        begin = end + len(',"after":')
        row, end = _DECODER.raw_decode(text, begin)
        return self.as_in(value, text[begin:end].encode()) if row is not None else None

    def as_in(self, value: bytes, row: bytes) -> bytes:
        """A row that an envelope's schema describes, with the columns of this one."""
        if value.startswith(self._value_head):
            return row
        return self._fitted(row, _described(value[: value.index(_ROWS)]))

    def of_version(self, version: int, row: bytes) -> bytes:
        """A row of a version of the query, with the columns of this one. KeyError if it is none of the others."""
        found = self._others[version]
        return row if [*found.values()] == [*self._fields.values()] else self._fitted(row, found)

    def _fitted(self, row: bytes, fields: Mapping[str, Any]) -> bytes:
        values = json.loads(row)
        fitted = {name: values.get(name) if fields.get(name) == field else None for name, field in self._fields.items()}
        return encode_json(fitted).encode()


@lru_cache(maxsize=16)
def _described(head: bytes) -> dict[str, Any]:
    """The fields of a row by the beginning of an envelope, which ends with its schema."""
    before, *_ = json.loads(head[len(b'{"schema":') :])["fields"]
    return {field["field"]: field for field in before["fields"]}


def _columns(schema: Schema) -> dict[str, Type]:
    return {**dict.fromkeys(WINDOW if schema.windowed else (TIME,), Type.TIMESTAMP), **schema.types}


def _fields(schema: Schema) -> dict[str, dict[str, Any]]:
    return {name: _field(name, kind) for name, kind in _columns(schema).items()}


def _field(name: str, kind: Type) -> dict[str, Any]:
    return {**_TYPES.get(kind, {"type": "string"}), "optional": True, "field": name}


def _struct(fields: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return {"type": "struct", "fields": fields, "optional": False, "name": name}
