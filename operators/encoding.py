"""State as bytes: a checksum, a version, a small JSON header, and parts that are Arrow IPC streams or nested packs.

Equal states must have equal bytes. So the encoding must not contain what Arrow leaves undefined: the value of a null and the
unused bits of a bitmap. Therefore columns are written without nulls, and a separate column marks where the nulls were.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from boreal.model.errors import CorruptError

_MAGIC = b"boreal state 1\n"
_FILLING = {pa.string(): "", pa.binary(): b"", pa.float64(): 0.0, pa.bool_(): False}


def pack(kind: str, facts: dict[str, object], parts: Sequence[bytes]) -> bytes:
    """Encode a state. kind: identifies the operator and its settings. facts: JSON values, mostly integers."""
    header = {"facts": facts, "kind": kind, "parts": [len(part) for part in parts]}
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    body = b"".join([len(text).to_bytes(4, "little"), text, *parts])
    return _MAGIC + zlib.crc32(body).to_bytes(4, "little") + body


def unpack(blob: bytes, kind: str) -> tuple[dict[str, object], list[bytes]]:
    """(facts, parts) of a state that `pack` encoded. CorruptError for other bytes, or for another kind of state."""
    body = memoryview(blob)[len(_MAGIC) + 4 :]
    if not blob.startswith(_MAGIC) or len(body) < 4:
        raise CorruptError("not an operator's state, or a state of another version")
    if zlib.crc32(body).to_bytes(4, "little") != blob[len(_MAGIC) : len(_MAGIC) + 4]:
        raise CorruptError("the state's checksum does not match")
    length = int.from_bytes(body[:4], "little")
    header = json.loads(bytes(body[4 : 4 + length]))
    if header["kind"] != kind:
        raise CorruptError(f"the state belongs to {header['kind']}, not to {kind}")
    parts, place = [], 4 + length
    for size in header["parts"]:
        parts.append(bytes(body[place : place + size]))
        place += size
    return header["facts"], parts


def encode_batch(batch: pa.RecordBatch) -> bytes:
    """A record batch as canonical bytes, which depend on its values only. List columns must not contain nulls."""
    columns: dict[str, pa.Array] = {}
    for position, column in enumerate(batch.columns):
        if column.null_count:
            columns[f"{position}?"] = column.is_null().cast(pa.uint8())
            column = column.fill_null(pa.scalar(_FILLING.get(column.type, 0), column.type))
        columns[f"{position}"] = column.cast(pa.uint8()) if column.type == pa.bool_() else column
    columns["rows"] = pa.repeat(pa.scalar(0, pa.uint8()), batch.num_rows)
    flat = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, flat.schema) as writer:
        writer.write_batch(flat)
    return bytes(sink.getvalue())


def decode_batch(blob: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The batch that `encode_batch` encoded. CorruptError if the bytes are not a batch with this schema."""
    try:
        flat = pa.ipc.open_stream(blob).read_next_batch()
        columns = [_restored(flat, position, field.type) for position, field in enumerate(schema)]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema) if columns else flat.select([])
        batch.validate(full=True)
    except (pa.ArrowException, KeyError, StopIteration) as error:
        raise CorruptError(f"the state does not have the columns {schema.names}: {error}") from None
    return batch


def _restored(flat: pa.RecordBatch, position: int, kind: pa.DataType) -> pa.Array:
    column = flat.column(f"{position}")
    column = column.cast(kind) if kind == pa.bool_() else column
    if f"{position}?" in flat.schema.names:
        return pc.if_else(flat.column(f"{position}?").cast(pa.bool_()), pa.scalar(None, kind), column)
    return column
