"""Arithmetic and casts of decimals: exact, and null where a result has more digits than its type."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_DOWN, Context, Decimal

import pyarrow as pa
import pyarrow.compute as pc

from boreal.model.decimals import DECIMAL_DIGITS, decimal_texts, from_unscaled, nearest_doubles, scaled_to
from boreal.model.schema import Type
from boreal.query.expressions import Term
from operators.kernels import Datum, Function, where

_EXACT = Context(prec=4 * DECIMAL_DIGITS)
"""Has room for the product of two decimals, and for their remainder."""

_WIDEST = 76
"""The most digits of Arrow's decimals: what they are rounded and checked in."""
_ROUND_MODES = {"round": "half_towards_infinity", "floor": "down", "ceil": "up"}


def decimal_function(term: Term) -> Function | None:
    """The function of a term whose result or first argument is a decimal; None where it is that of other types."""
    assert term.type is not None
    first = term.arguments[0].type if term.arguments else None
    match term.operation:
        case "cast" if first is not None and (first.is_decimal or term.type.is_decimal):
            return _cast(first, term.type)
        case "add" | "subtract" | "multiply" | "remainder" as name if term.type.is_decimal:
            return _arithmetic(name, term)
        case "round" | "floor" | "ceil" as name if term.type.is_decimal:
            digits = term.value
            assert isinstance(digits, int)
            return _round(name, digits, term.type)
        case "negate" | "abs" as name if term.type.is_decimal:
            kernel: Function = getattr(pc, name)
            return kernel
        case _:
            return None


def _arithmetic(name: str, term: Term) -> Function:
    """By Arrow's kernel where its result, which has room for every value, is of the term's type; otherwise row by row."""
    assert term.type is not None
    kind = term.type
    if name == "remainder":
        return lambda left, right: _row_by_row(_remainder, left, right, kind)
    kernel: Function = getattr(pc, name)
    try:
        made = kernel(*(pa.nulls(0, argument.type.arrow) for argument in term.arguments if argument.type)).type
    except pa.ArrowInvalid:
        made = None
    return kernel if made == kind.arrow else lambda left, right: _row_by_row(getattr(_EXACT, name), left, right, kind)


def _remainder(left: Decimal, right: Decimal) -> Decimal | None:
    return _EXACT.remainder(left, right) if right else None


def _row_by_row(function: Callable[[Decimal, Decimal], Decimal | None], left: Datum, right: Datum, kind: Type) -> pa.Array:
    size = max(len(value) for value in (left, right) if isinstance(value, pa.Array))
    columns = [value if isinstance(value, pa.Array) else pa.repeat(value, size) for value in (left, right)]
    pairs = zip(*(column.to_pylist() for column in columns), strict=True)
    results = [None if one is None or other is None else function(one, other) for one, other in pairs]
    return from_unscaled([None if value is None else scaled_to(value, kind.after) for value in results], kind.arrow)


def _round(name: str, digits: int, kind: Type) -> Function:
    """Halves are rounded away from zero."""

    def run(value: pa.Array) -> pa.Array:
        if digits < value.type.scale:
            wide = value.cast(pa.decimal256(_WIDEST, value.type.scale))
            value = pc.round(wide, ndigits=max(digits, -DECIMAL_DIGITS - 1), round_mode=_ROUND_MODES[name])
        return _narrowed(value, kind)

    return run


def _cast(source: Type, target: Type) -> Function:
    if not target.is_decimal:
        if target is Type.STRING:
            return decimal_texts
        return _whole if target is Type.INT else nearest_doubles
    if source.is_decimal:
        return _round("round", target.after, target)
    if source is Type.INT:
        return lambda value: _narrowed(value.cast(pa.decimal256(_WIDEST, target.after)), target)
    read = _of_text if source is Type.STRING else _of_double
    return lambda value: from_unscaled(
        [None if one is None else read(one, target.after) for one in value.to_pylist()], target.arrow
    )


def _of_text(text: str, after: int) -> int | None:
    """As it would be read from a record, but rounded."""
    try:
        value = Decimal(text) if text.isascii() and "_" not in text else None
    except ArithmeticError:
        return None
    return _unscaled(value, after)


def _of_double(value: float, after: int) -> int | None:
    return _unscaled(Decimal(value), after)


def _unscaled(value: Decimal | None, after: int) -> int | None:
    """None for what no decimal can be; numbers far too large are not written out."""
    if value is None or not value.is_finite() or value.adjusted() > DECIMAL_DIGITS:
        return None
    return 0 if value.adjusted() < -2 * DECIMAL_DIGITS else scaled_to(value, after)


def _whole(value: pa.Array) -> pa.Array:
    """Without the fraction; null beyond int64."""
    rows = [None if one is None else int(one.to_integral_value(ROUND_DOWN)) for one in value.to_pylist()]
    return pa.array([one if one is not None and -(1 << 63) <= one < 1 << 63 else None for one in rows], pa.int64())


def _narrowed(value: pa.Array, kind: Type) -> pa.Array:
    """The values, which have no more digits after the point than the type; null where they have more before it."""
    wide = value.cast(pa.decimal256(_WIDEST, kind.after))
    limit = pa.scalar(Decimal(10 ** (kind.digits - kind.after)), pa.decimal256(_WIDEST, kind.after))
    return where(pc.less(pc.abs(wide), limit), wide).cast(kind.arrow)
