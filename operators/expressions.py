"""Evaluates typed expressions over Arrow batches, with one kernel call per term.

Kernels are called one by one on plain arrays: for a small batch that takes microseconds, and it never uses a second thread. A
compiled expression has no state, and its result for a row depends on that row only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from boreal.model.schema import FIRST_TIME_US, LAST_TIME_US, Type
from boreal.query.expressions import Expression, Term, format_timestamp, parse_date, parse_timestamp
from operators.decimals import decimal_function
from operators.kernels import Datum, Function, between, each, where
from operators.texts import TEXT_FUNCTIONS, text_function
from operators.times import TIME_FUNCTIONS, time_function

CompiledTerm = Callable[[pa.RecordBatch], Datum]
"""Evaluates a term on a batch."""

_TIMESTAMP = Type.TIMESTAMP.arrow
_FALSE = pa.nulls(1, pa.bool_()).is_valid()[0]
"""The scalar False. Not `pa.scalar(False)`: where pandas is installed, converting a value of Python's imports it, and many
processes that import this module never convert one."""

_LONGEST_TEXT = (1 << 31) - 1
"""Maximum length in bytes, and so in characters: Arrow counts them in 32 bits."""


def compile_expression(expression: Expression) -> Callable[[pa.RecordBatch], pa.Array]:
    """A function from a batch to an array with the batch's length. The batch must have the schema that `expression` was checked
    against."""
    run = _build(expression.term)
    if expression.columns:
        return run
    value = run(None)
    return lambda batch: pa.repeat(value, batch.num_rows)


def _build(term: Term) -> CompiledTerm:
    if term.operation == "column":
        position = term.value
        return lambda batch: batch.column(position)
    if term.operation == "reserved":
        position = term.value
        return lambda batch: batch.column(position).view(_TIMESTAMP)
    if term.operation == "literal":
        assert term.type is not None
        value = pa.scalar(term.value, term.type.arrow)
        return lambda batch: value
    function = _function(term)
    runs = [_build(argument) for argument in term.arguments]
    if not any(_reads_columns(argument) for argument in term.arguments):
        constant = function(*(pa.repeat(run(None), 1) for run in runs))[0]
        return lambda batch: constant
    if len(runs) == 1:
        (only,) = runs
        return lambda batch: function(only(batch))
    return lambda batch: function(*[run(batch) for run in runs])


def _reads_columns(term: Term) -> bool:
    return term.operation in ("column", "reserved") or any(_reads_columns(argument) for argument in term.arguments)


def _function(term: Term) -> Function:
    """The function of a term. At least one of its arguments will be an array."""
    assert term.type is not None
    kinds = tuple(argument.type for argument in term.arguments)
    of_decimals = decimal_function(term)
    if of_decimals is not None:
        return of_decimals
    match term.operation:
        case "add" | "subtract" | "multiply" | "negate" | "abs" as name:
            if term.type is Type.INT:
                return _null_where_it_fails(getattr(pc, f"{name}_checked"), _may_be_an_int(getattr(pc, name)))
            return _finite(getattr(pc, name))
        case "divide" | "sqrt" | "ln" | "log10" | "exp" | "power" as name:
            return _finite(getattr(pc, name))
        case "log":
            return _finite(pc.logb)
        case "sign":
            return _sign
        case "remainder":
            return _remainder
        case "round":
            assert isinstance(term.value, int)
            return _round(term.value)
        case "in":
            assert isinstance(term.value, tuple)
            return _membership(pa.array(term.value, kinds[0].arrow if kinds[0] else None))
        case "like":
            return lambda value: pc.match_like(value, term.value)
        case "case":
            return _case
        case "nullif":
            return _nullif
        case "greatest":
            return _extreme(pc.max_element_wise, term.type)
        case "least":
            return _extreme(pc.min_element_wise, term.type)
        case "length":
            return lambda value: pc.cast(pc.utf8_length(value), pa.int64())
        case "substring":
            assert isinstance(term.value, tuple)
            return _substring(*term.value)
        case "concat":
            return lambda *values: pc.binary_join_element_wise(*values, "", null_handling="emit_null")
        case "cast":
            assert kinds[0] is not None
            return _cast(kinds[0], term.type)
        case name if name in TIME_FUNCTIONS:
            return time_function(term)
        case name if name in TEXT_FUNCTIONS:
            return text_function(term)
        case name:
            return _KERNELS[name]


_KERNELS: dict[str, Function] = {
    "and": pc.and_kleene,
    "ceil": pc.ceil,
    "coalesce": pc.coalesce,
    "equal": pc.equal,
    "floor": pc.floor,
    "greater": pc.greater,
    "greater_equal": pc.greater_equal,
    "is_null": pc.is_null,
    "less": pc.less,
    "less_equal": pc.less_equal,
    "lower": pc.utf8_lower,
    "not": pc.invert,
    "not_equal": pc.not_equal,
    "or": pc.or_kleene,
    "upper": pc.utf8_upper,
}
"""The operations that are exactly an Arrow kernel."""


# -- Null instead of an error -----------------------------------------------------------------------------------------


def _finite(function: Function) -> Function:
    """The function with infinities and NaN replaced by null."""

    def run(*values: Datum) -> Datum:
        result = function(*values)
        finite = pc.is_finite(result)
        if pc.all(finite).as_py() is False:
            return pc.if_else(finite, result, pa.scalar(None, result.type))
        return result

    return run


def _null_where_it_fails(function: Function, may_work: Function | None = None) -> Function:
    """A kernel that raises for the whole array if one row overflows or cannot be parsed; here such rows become null.

    may_work: selects the rows that are tried after a failure. Finding a bad row by trial takes a hundred times as long as
    computing it, so few bad rows should be left.
    """

    def run(*values: Datum) -> Datum:
        try:
            return function(*values)
        except pa.ArrowInvalid:
            if may_work is None:
                return halve(*values)
            return halve(pc.if_else(may_work(*values), values[0], pa.scalar(None, values[0].type)), *values[1:])

    def halve(*values: Datum) -> Datum:
        try:
            return function(*values)
        except pa.ArrowInvalid:
            length = next(len(value) for value in values if isinstance(value, pa.Array))
            if length == 1:
                return pa.nulls(1, _type_of_result(function, values))
            halves = [
                halve(*(value.slice(begin, count) if isinstance(value, pa.Array) else value for value in values))
                for begin, count in ((0, length // 2), (length // 2, length - length // 2))
            ]
            return pa.concat_arrays(halves)

    return run


def _may_be_an_int(function: Function) -> Function:
    """Whether the result of `function` on ints fits into int64, except close to the limit."""

    def run(*values: Datum) -> Datum:
        nearly = function(*(pc.cast(value, pa.float64(), safe=False) for value in values))
        return pc.less(pc.abs(nearly), 1.001 * 2.0**63)

    return run


def _type_of_result(function: Function, values: tuple[Datum, ...]) -> pa.DataType:
    return function(*(pa.nulls(1, value.type) for value in values)).type


# -- Functions that Arrow lacks, or defines differently ---------------------------------------------------------------


def _sign(value: Datum) -> pa.Array:
    sign = pc.sign(value)
    return pc.cast(where(pc.is_finite(sign), sign), pa.int64())


def _remainder(left: Datum, right: Datum) -> pa.Array:
    """x % y with the sign of x, as in SQL; null if y is zero."""
    dividend, left_null = _numpy(left)
    divisor, right_null = _numpy(right)
    undefined = left_null | right_null | (divisor == 0)
    # For ints x % -1 equals x % 1, which avoids the one quotient that int64 cannot hold.
    safe = np.where(undefined | (divisor == -1 if divisor.dtype == np.int64 else False), 1, divisor)
    with np.errstate(invalid="ignore"):
        result = np.fmod(dividend, safe)
    if result.dtype == np.float64:
        undefined = undefined | ~np.isfinite(result)
    return pa.array(result, mask=np.broadcast_to(undefined, result.shape))


def _numpy(value: Datum) -> tuple[np.ndarray, np.ndarray]:
    """(values with 0 for null, mask of the nulls); of length 1 for a scalar."""
    array = pa.repeat(value, 1) if isinstance(value, pa.Scalar) else value
    filled = array.fill_null(0) if array.null_count else array
    return filled.to_numpy(), array.is_null().to_numpy(zero_copy_only=False)


def _membership(choices: pa.Array) -> Function:
    is_real = pa.types.is_floating(choices.type)

    def run(value: Datum) -> Datum:
        # The look-up compares bits, so -0.0 is turned into 0.0.
        value = pc.add(value, 0.0) if is_real else value
        found = pc.is_in(value, value_set=choices)
        return pc.if_else(value.is_valid(), found, pa.scalar(None, pa.bool_())) if value.null_count else found

    return run


def _case(*values: Datum) -> Datum:
    """condition, value, condition, value, ..., otherwise."""
    result = values[-1]
    for position in range(len(values) - 3, -1, -2):
        result = pc.if_else(pc.coalesce(values[position], _FALSE), values[position + 1], result)
    return result


def _nullif(value: Datum, unwanted: Datum) -> Datum:
    return pc.if_else(pc.coalesce(pc.equal(value, unwanted), _FALSE), pa.scalar(None, value.type), value)


def _extreme(function: Function, kind: Type) -> Function:
    if kind is not Type.TIMESTAMP:
        return function
    return lambda *values: pc.cast(function(*(pc.cast(value, pa.int64()) for value in values)), _TIMESTAMP)


def _round(digits: int) -> Function:
    """Rounds halves away from zero. A double too large to be shifted by `digits` has no such digits, so it is the result."""
    rounded = _null_where_it_fails(lambda value: pc.round(value, ndigits=digits, round_mode="half_towards_infinity"))
    return rounded if digits < 0 else lambda value: pc.coalesce(rounded(value), value)


def _substring(start: int, length: int | None = None) -> Function:
    start = min(start, _LONGEST_TEXT)
    stop = None if length is None else min(start - 1 + length, _LONGEST_TEXT)
    return lambda value: pc.utf8_slice_codeunits(value, start - 1, stop)


# -- Casts ------------------------------------------------------------------------------------------------------------


def _cast(source: Type, target: Type) -> Function:
    match source, target:
        case Type.STRING, Type.TIMESTAMP:
            return each(parse_timestamp, _TIMESTAMP)
        case Type.STRING, Type.DATE:
            return each(parse_date, target.arrow)
        case Type.TIMESTAMP, Type.STRING:
            return lambda value: each(_timestamp_text, pa.string())(pc.cast(value, pa.int64()))
        case Type.STRING, Type.DOUBLE:
            return _finite(_null_where_it_fails(lambda value: pc.cast(value, pa.float64()), _may_be_a_number))
        case Type.STRING, Type.INT:
            return _null_where_it_fails(lambda value: pc.cast(value, pa.int64()), _may_be_a_number)
        case Type.DOUBLE, Type.INT:
            return _whole
        case Type.INT, Type.TIMESTAMP:
            return lambda value: where(between(value, FIRST_TIME_US, LAST_TIME_US), value).cast(_TIMESTAMP)
        case Type.INT, Type.DOUBLE:
            # Beyond 2**53 the result is the nearest double.
            return lambda value: pc.cast(value, pa.float64(), safe=False)
        case _:
            return _null_where_it_fails(lambda value: pc.cast(value, target.arrow))


def _may_be_a_number(value: pa.Array) -> pa.Array:
    return pc.match_substring_regex(value, r"^[-+]?[.0-9][-+.0-9a-zA-Z]*$")


def _whole(value: pa.Array) -> pa.Array:
    whole = pc.trunc(value)
    return where(between(whole, -(2.0**63), math.nextafter(2.0**63, 0)), whole).cast(pa.int64())


def _timestamp_text(time: int) -> str | None:
    try:
        return format_timestamp(time)
    except OverflowError:
        return None  # outside the years 1 to 9999
