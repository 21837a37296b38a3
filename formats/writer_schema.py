"""Schemas of a registry, by which records were written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from boreal.model.schema import Type
from formats.record_parsing import RawColumns, RecordShape

MAGIC = b"\0"
"""The first byte of a record with the id of its schema."""
ID_END = 5
"""Where the id ends: after the magic byte and four bytes, the highest first."""


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """A schema as the registry has it. What an id stands for never changes."""

    kind: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    text: str
    """The schema; a Protobuf file as its descriptor in base64."""
    references: tuple[tuple[str, str], ...] = ()
    """The name and the text of each schema that it refers to, after those that this one refers to in turn."""


class SchemaProblem(ValueError):
    """Why no record of a schema can become a row. `column`: the one that cannot; "" if it is about the schema as a whole."""

    def __init__(self, problem: str, column: str = "") -> None:
        super().__init__(f"column {column}: {problem}" if column else problem)
        self.problem = problem
        self.column = column


Decode = Callable[[Sequence[bytes]], tuple[RawColumns, dict[int, str]]]
"""Columns of payloads, a row for each that can be decoded; and for each other one, by its index, why it cannot."""


def lacking(shape: RecordShape, column: str, place: str, owner: str) -> None:
    """Note that a schema has no such field. SchemaProblem, unless the stream takes it as null."""
    if not shape.fills:
        raise SchemaProblem(f"{owner} has no field {place}; with `lacking: nulls` it would be null", column)


def refuse_other_kind(shape: RecordShape, column: str, given: str) -> None:
    """SchemaProblem if a stream takes no values of other types, and this is one. given: `a text`, `a number` or `a bool`."""
    wanted = _WANTED.get(shape.schema.types.get(column, Type.TIMESTAMP), given)
    if shape.strict and given != wanted:
        raise SchemaProblem(f"is {given} in its schema, and {wanted} is wanted", column)


_WANTED = {Type.STRING: "a text", Type.INT: "a number", Type.DOUBLE: "a number", Type.BOOL: "a bool"}
