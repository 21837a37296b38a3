"""Records in CSV: each is one row, of fields in a known order (`boreal.query.csv_form.Csv`).

In bulk, records without ends of lines inside of them are joined as lines, which Arrow parses. A quote that is not closed makes
one row of several lines. So as many rows as records means that row i is record i. All other records are read one by one.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from boreal.model.schema import Type
from boreal.query.csv_form import Csv
from boreal.query.shapes import Stream
from formats.csv_text import LONGEST_QUOTED, row_problem, split_row, with_nulls
from formats.record_parsing import ParsedRows, RawColumns, RecordShape, is_utf8, read_all, read_each, read_pieces, shown, whole

_MARK = b"\xef\xbb\xbf"
"""What some programs write at the beginning of a file in UTF-8."""


@dataclass(frozen=True, slots=True)
class CsvRecords:
    """How the records of a stream are read."""

    header: tuple[str, ...]
    """The names of a record's fields, in their order."""
    delimiter: str = ","
    """Between two fields."""
    null: str | None = None
    """A text that is null, beside those that are in all formats."""

    @staticmethod
    def of(stream: Stream) -> CsvRecords | None:
        """How a stream's records are read; None for a stream of another format."""
        if stream.format != "csv":
            return None
        form = stream.csv or Csv()
        return CsvRecords(form.header or stream.listed, form.delimiter, form.nulls)

    def read(self, shape: RecordShape, records: Sequence[bytes | None], beside: RawColumns | None = None) -> ParsedRows:
        """The rows of records, and a reason for each that is none; a header is neither. beside: as in `read_records`."""
        return read_pieces(shape, records, beside, self._read_in_bulk, self._read_one_by_one)

    def _read_in_bulk(self, shape: RecordShape, records: Sequence[bytes | None], beside: RawColumns) -> ParsedRows | None:
        """The rows, if no record is odd, or a header; otherwise None."""
        columns = self.fast(shape, records)
        return None if columns is None else read_all(shape, {**columns, **beside})

    def _read_one_by_one(self, shape: RecordShape, records: Sequence[bytes | None], beside: RawColumns) -> ParsedRows:
        texts, broken, headers = self.exact(shape, records)
        rows = read_each(shape, {**texts, **beside}).without(broken)
        if not headers:
            return rows
        without = rows.without(dict.fromkeys(headers, ""))
        return replace(without, reasons={place: reason for place, reason in without.reasons.items() if place not in headers})

    def fast(self, shape: RecordShape, records: Sequence[bytes | None]) -> RawColumns | None:
        """The wanted columns, as texts; None if the records need `exact`."""
        names = list(shape.places)
        data = _as_lines(records)
        if not names or data is None or not is_utf8(data):
            return None
        try:
            table = pa.csv.read_csv(
                pa.BufferReader(data),
                pa.csv.ReadOptions(column_names=list(self.header), use_threads=False, block_size=len(data) + 1),
                pa.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True, ignore_empty_lines=False),
                pa.csv.ConvertOptions(
                    include_columns=names, column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
                ),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != len(records):
            return None
        columns = whole(table, names)
        if pc.any(pc.equal(columns[names[0]], names[0])).as_py():
            return None  # perhaps a header
        columns = {name: with_nulls(column, self.null) for name, column in columns.items()}
        return None if shape.strict and _has_numbers_for_bools(shape, columns) else columns

    def exact(
        self, shape: RecordShape, records: Sequence[bytes | None]
    ) -> tuple[RawColumns, dict[int, str], Collection[int]]:
        """The wanted columns, as texts; the reason for each record that is no row, by index; and which records are headers.
        Both have a row of nulls, so that row i is record i."""
        places = [(name, self.header.index(name)) for name in shape.places]
        columns: dict[str, list[str | None]] = {name: [] for name, _ in places}
        reasons: dict[int, str] = {}
        headers: list[int] = []
        for number, record in enumerate(records):
            fields: list[str] | None = None
            try:
                fields = self._fields(record)
            except ValueError as problem:
                reasons[number] = str(problem)
            if fields == list(self.header):
                headers.append(number)
                fields = None
            for name, place in places:
                columns[name].append(None if fields is None else fields[place])
        texts = {name: with_nulls(pa.array(column, pa.string()), self.null) for name, column in columns.items()}
        if shape.strict:
            for name, kind in shape.schema.columns:
                if kind is Type.BOOL and name in texts:
                    for number, text in enumerate(texts[name].to_pylist()):
                        if text in _NUMBERS:
                            reasons.setdefault(number, f"column {name}: {shown(text)} is a number, and a bool is wanted")
        return texts, reasons, headers

    def _fields(self, record: bytes | None) -> list[str]:
        """The fields of a record. ValueError says why it is no row."""
        if record is None:
            raise ValueError("no value")
        line = _without_end(record).decode("utf-8", "surrogateescape").removeprefix("\ufeff")
        if not line:
            raise ValueError("is empty")
        lines = list(io.StringIO(line, newline=""))
        fields, end = split_row(lines, 0, self.delimiter)
        if fields is not None and end < len(lines):
            raise ValueError(f"has {len(lines)} lines, and a record is one row")
        if problem := row_problem(fields, len(self.header)):
            raise ValueError(problem)
        assert fields is not None, "which would be a problem"
        return fields


_NUMBERS = ("0", "1")


def _has_numbers_for_bools(shape: RecordShape, columns: RawColumns) -> bool:
    bools = [columns[name] for name, kind in shape.schema.columns if kind is Type.BOOL and name in columns]
    return any(pc.any(pc.is_in(column, pa.array(_NUMBERS))).as_py() for column in bools)


def _as_lines(records: Sequence[bytes | None]) -> bytes | None:
    """The records as lines; None if one is not just one line."""
    lines = [record for record in records if record]
    if not records or len(lines) != len(records):
        return None
    data = b"\n".join(lines)
    if data.count(b"\n") != len(lines) - 1 or b"\r" in data:
        lines = [_without_end(line) for line in lines]
        data = b"\n".join(lines)
        if data.count(b"\n") != len(lines) - 1 or b"\r" in data or not all(lines):
            return None
    if b'"' in data and max(map(len, lines)) > LONGEST_QUOTED:
        return None
    return None if _MARK in data else data


def _without_end(record: bytes) -> bytes:
    return record.removesuffix(b"\n").removesuffix(b"\r")
