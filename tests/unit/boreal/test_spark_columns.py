"""Records of results as the columns of a Spark schema, without Spark."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, DateType, DecimalType, IntegerType, LongType, StringType, StructField, StructType

from boreal.model.errors import UserError
from boreal.spark.columns import batches_of, check_schema


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def record(value: bytes | None) -> Any:
    return SimpleNamespace(value=value, key=b"null", headers=[("id", b"1")])


WANTED = schema(day=DateType(), total=DecimalType(12, 2), n=LongType())
ROWS = [b'{"day":"2013-01-31","total":"-0.05","n":1}', b'{"day":null,"total":null,"n":2}']
EXPECTED = [{"day": date(2013, 1, 31), "total": Decimal("-0.05"), "n": 1}, {"day": None, "total": None, "n": 2}]


def test_dates_and_decimals_are_what_the_schema_says() -> None:
    check_schema("stable", WANTED)
    [batch] = batches_of("stable", WANTED, map(record, ROWS), True)
    assert batch.to_pylist() == EXPECTED and batch.schema.field("total").type == pa.decimal128(12, 2)


def test_those_of_changes_too() -> None:
    values = [b'{"type":"stable","seq":1,"data":%s}' % row for row in ROWS]
    [batch] = batches_of("changes", WANTED, map(record, values), False)
    assert batch.to_pylist() == EXPECTED


def test_what_no_result_has_or_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match=r"schema\.n: is not a type of it .*date, decimal\(p,s\)"):
        check_schema("stable", schema(n=IntegerType()))
    for value in (b'{"day":"31.1.2013"}', b'{"total":"0.005"}'):
        with pytest.raises(UserError, match="schema: does not fit the rows"):
            list(batches_of("stable", WANTED, [record(value)], True))
    [batch] = batches_of("stable", schema(day=StringType()), map(record, ROWS), True)
    assert batch["day"].to_pylist() == ["2013-01-31", None]
