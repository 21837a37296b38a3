"""What feeding writes is what the source reads: the same rows as the file's."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from boreal.spec import Stream
from services.feed import json_records
from services.replay import read_source
from services.rows import Shape, read_records

COLUMNS = {"carrier": "string", "flight": "int", "delay": "double", "late": "bool", "landed": "timestamp"}
CSV = """at,carrier,flight,delay,late,landed
2013-01-01T05:10:00Z,UA,1545,0.1,true,2013-01-01T08:30:00.000001Z
2013-01-01T05:10:00.000001Z,"a ""quoted"", ünïcode",9223372036854775807,1e300,false,NA
2013-01-01T05:11:00Z,,,,,
"""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"schema": {**COLUMNS, "at": "timestamp"}},
        {"schema": {**COLUMNS, "at": "string"}},
        {"time": "landed", "schema": {"carrier": "string", "landed": "timestamp"}},
    ],
)
def test_records_are_read_as_the_rows_that_they_were_made_of(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(CSV)
    stream = Stream.model_validate({"time": "at", "schema": COLUMNS, **changes})
    batch = read_source("s", stream, str(path)).batch
    assert batch.num_rows > 0
    shape = Shape(stream.time, stream.time_unit, stream.attributes)
    rows = read_records(shape, json_records(stream, batch))
    assert not rows.reasons
    again = pa.RecordBatch.from_arrays([pa.array(rows.times), *rows.values], schema=batch.schema)
    assert again.to_pylist() == batch.to_pylist()
