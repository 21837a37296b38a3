"""SQL expressions: parsed by sqlglot, checked against a schema, and converted to a small typed tree.

The rest of the project uses only this tree; `operators.expressions` evaluates it. `boreal.query.language` and the tables
below list the language; anything else is refused. Types are those of the query file. Four rules differ from some databases:

    `/` always returns a double.
    An operation without a finite result returns null, so that no tuple can stop a query: x / 0, sqrt(-1), an overflow, a
    sum of ints beyond int64, a cast of text that is not a number, a cast of an int to a time outside the years 1 to 9999.
    Text becomes a timestamp or a date only in a literal that is compared or combined with one.
    Beside a decimal, ints and numbers that are written out are decimals; a double makes a double of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from boreal.model.decimals import DECIMAL_DIGITS
from boreal.model.errors import UserError
from boreal.model.schema import FIRST_TIME_US, LAST_TIME_US, PLAIN_TYPES, RESERVED, Schema, Type
from boreal.query.language import AGGREGATIONS, FUNCTIONS
from boreal.query.patterns import named_groups, pattern_problem
from boreal.query.refusals import did_you_mean

DEEPEST = 250
"""The maximum depth of an expression; each term of an `or` adds one level. Expressions are parsed and evaluated recursively."""

MOST_DIGITS = 308
"""The maximum number of digits for `round`, before or after the decimal point: doubles have no larger powers of ten."""


class Numeral(float):
    """A double that is written out, which a decimal beside it takes for a decimal of the same digits."""

    text: str
    """The digits."""

    def __new__(cls, text: str, sign: int = 1) -> Numeral:
        made = super().__new__(cls, sign * float(text))
        made.text = text if sign > 0 else f"-{text}"
        return made


@dataclass(frozen=True, slots=True)
class Term:
    """A node of a typed expression tree."""

    operation: str
    """`column`, `reserved` (a column that is int64 in the batch and a timestamp here), `literal`, or an operation on the
    arguments."""
    type: Type | None
    """The type of the result; None only for a null literal whose type is not known yet."""
    arguments: tuple[Term, ...] = ()
    """The operands, in order."""
    value: object = None
    """Of a column: its position in the batch. Of a literal: int, float, Decimal, str, bool, or None for null; a timestamp is an
    int in microseconds since the Unix epoch, a date in days. Some operations have a constant here."""


@dataclass(frozen=True)
class Expression:
    """A checked expression."""

    sql: str
    """The text of the expression."""
    type: Type
    """The type of the result."""
    columns: tuple[str, ...]
    """The names of the columns that it reads, in the order of the schema."""
    term: Term
    """The typed tree."""

    @property
    def column(self) -> str | None:
        """The name of the column, if the expression is only a column; else None."""
        return self.columns[0] if self.term.operation in ("column", "reserved") else None


@dataclass(frozen=True)
class Aggregation:
    """A checked aggregation."""

    function: str
    """count, count_distinct, approx_count_distinct, approx_quantile, sum, avg, min, max, stddev, stddev_pop, first or last."""
    argument: Expression | None
    """The expression that is aggregated; None only for count(*)."""
    type: Type
    """The type of the result."""
    share: Fraction = Fraction(0)
    """Of approx_quantile: which share of the values is at most the result."""


def parse(sql: str, schema: Schema, field: str) -> Expression:
    """Parse one expression over the columns of `schema.visible`. UserError, with `field`, if it is not valid."""
    with _deep_refused(sql, field):
        return _ExpressionReader(sql, schema, field).expression(_tree(sql, field), sql)


def parse_aggregation(sql: str, schema: Schema, field: str) -> Aggregation:
    """Parse one aggregation, such as `avg(dep_delay)`. UserError, with `field`, for any other text."""
    with _deep_refused(sql, field):
        return _aggregation(_tree(sql, field), _ExpressionReader(sql, schema, field))


def parse_order(sql: str, schema: Schema, field: str) -> tuple[tuple[Expression, bool], ...]:
    """Parse `expression [asc | desc], ...` to (expression, descending) pairs. UserError, with `field`, for any other text."""
    with _deep_refused(sql, field):
        return _order(_tree(f"select 1 order by {sql}", field, given=sql), _ExpressionReader(sql, schema, field))


def _aggregation(tree: Node, reader: _ExpressionReader) -> Aggregation:
    condition = None
    if isinstance(tree, exp.Filter):
        tree, condition = tree.this, tree.expression.this
    if isinstance(tree, exp.CountIf):
        condition = tree.this if condition is None else exp.And(this=exp.paren(condition), expression=exp.paren(tree.this))
        tree = exp.Count(this=exp.Star())
    function = _AGGREGATE_CLASSES.get(type(tree))
    if isinstance(tree, exp.Anonymous) and str(tree.this).lower() == "mean":
        function = "avg"
    if function is None:
        fix = f"write one of {', '.join(AGGREGATIONS)}; combine several in a map that reads this operator"
        raise reader.refuse("is not an aggregation", fix)
    share = Fraction(0)
    if isinstance(tree, exp.ApproxDistinct | exp.ApproxQuantile):
        tree, share = _without_share(tree, reader)
    operands = tree.expressions if isinstance(tree, exp.Anonymous) else [tree.this, *tree.expressions]
    if len(operands) != 1 or operands[0] is None:
        raise reader.refuse(f"{function} takes one argument", f"write one of {', '.join(AGGREGATIONS)}")
    return replace(reader.aggregation(function, operands[0], condition), share=share)


def _without_share(tree: Node, reader: _ExpressionReader) -> tuple[Node, Fraction]:
    """(An approximate aggregation of one argument, the share of a quantile): all of the state's size is fixed."""
    if any(tree.args.get(name) for name in ("accuracy", "weight", "error_tolerance", "num_buckets")):
        raise reader.refuse("takes no accuracy and no weight", "leave it out: query.md says how large the error is")
    quantile = tree.args.get("quantile")
    if quantile is None:
        return tree, Fraction(0)
    is_number = isinstance(quantile, exp.Literal) and not quantile.is_string
    share = Fraction(quantile.this) if is_number else Fraction(-1)
    if not 0 <= share <= 1:
        fix = "write a number from 0 to 1, as in approx_quantile(x, 0.95)"
        raise reader.refuse(f"{quantile.sql()} is no share of the values", fix)
    return tree, share


def _order(tree: Node, reader: _ExpressionReader) -> tuple[tuple[Expression, bool], ...]:
    entries = tree.args["order"].expressions if isinstance(tree, exp.Select) and tree.args.get("order") else []
    extra = {name for name, value in tree.args.items() if value} - {"order", "expressions"}
    # sqlglot sets the position of nulls even if the text does not; only the text shows whether it was written.
    if not entries or extra or _NULLS_FIRST.search(reader.sql):
        fix = 'write columns with asc or desc, such as "dep_delay desc, carrier"; nulls always come last'
        raise reader.refuse("is not an order", fix)
    return tuple((reader.expression(entry.this, entry.this.sql()), bool(entry.args.get("desc"))) for entry in entries)


def parse_timestamp(text: str) -> int | None:
    """Microseconds since the Unix epoch of an ISO 8601 text; UTC if it has no zone. None for any other text."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return moment_us(moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment)


def parse_date(text: str) -> int | None:
    """Days since 1970 of a text such as 2013-01-31. None for any other text."""
    try:
        return (date.fromisoformat(text.strip()) - _EPOCH.date()).days if _DATE.fullmatch(text.strip()) else None
    except ValueError:
        return None


def moment_us(moment: datetime) -> int | None:
    """Microseconds since the Unix epoch; None where the zone moves it out of the years 1 to 9999."""
    time = (moment - _EPOCH) // timedelta(microseconds=1)
    return time if FIRST_TIME_US <= time <= LAST_TIME_US else None


def format_timestamp(time: int) -> str:
    """ISO 8601 in UTC, without trailing zeros in the fraction of the second: "2013-01-01T05:10:00Z"."""
    text = (_EPOCH + timedelta(microseconds=time)).replace(tzinfo=None).isoformat(timespec="microseconds")
    return text.rstrip("0").rstrip(".") + "Z"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_NULLS_FIRST = re.compile(r"\bnulls\s+first\b", re.IGNORECASE)


@contextmanager
def _deep_refused(sql: str, field: str) -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise _too_deep(sql, field) from None


def _too_deep(sql: str, field: str) -> UserError:
    fix = f"use at most {DEEPEST} levels: write `in (...)` for many values, or divide it among several filters or maps"
    return UserError(field, sql, "has too many nested levels", fix)


@lru_cache(maxsize=256)
def _tree(sql: str, field: str, given: str | None = None) -> Node:
    """The tree of sqlglot, which must not be changed. It is cached, because each start of an operator parses the same text."""
    shown = sql if given is None else given
    try:
        trees = sqlglot.parse(sql)
    except SqlglotError as error:
        description = (getattr(error, "errors", None) or [{}])[0].get("description") or "it is not SQL"
        reason = "something is missing" if "<class" in description else description.rstrip(".").lower()
        fix = 'write one SQL expression, such as "dep_delay > 15"'
        raise UserError(field, shown, f"cannot be read: {reason}", fix) from None
    if len(trees) != 1 or trees[0] is None:
        raise UserError(field, shown, "is not one expression", 'write one SQL expression, such as "dep_delay > 15"')
    return trees[0]


# -- Reading one expression -------------------------------------------------------------------------------------------

Node = Any
"""A node of sqlglot's tree. The name of its base class depends on the version."""

_Names = dict[type[Node], str]

_NUMERIC = (Type.INT, Type.DOUBLE)

_COMPARISONS: _Names = {
    exp.EQ: "equal", exp.NEQ: "not_equal", exp.LT: "less", exp.LTE: "less_equal", exp.GT: "greater",
    exp.GTE: "greater_equal",
}  # fmt: skip
_ARITHMETIC: _Names = {exp.Add: "add", exp.Sub: "subtract", exp.Mul: "multiply", exp.Mod: "remainder"}
_REAL_FUNCTIONS: _Names = {exp.Sqrt: "sqrt", exp.Ln: "ln", exp.Exp: "exp"}
_ROUNDINGS: _Names = {exp.Floor: "floor", exp.Ceil: "ceil"}
_TEXT_FUNCTIONS: _Names = {exp.Lower: "lower", exp.Upper: "upper"}
_EXTREMES: _Names = {exp.Greatest: "greatest", exp.Least: "least"}

_AGGREGATE_CLASSES: _Names = {
    exp.Count: "count", exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max", exp.Stddev: "stddev",
    exp.StddevSamp: "stddev", exp.StddevPop: "stddev_pop", exp.First: "first", exp.Last: "last",
    exp.ApproxDistinct: "approx_count_distinct", exp.ApproxQuantile: "approx_quantile",
}  # fmt: skip

_CAST_NAMES = {
    "TEXT": Type.STRING, "VARCHAR": Type.STRING, "CHAR": Type.STRING, "INT": Type.INT, "BIGINT": Type.INT,
    "DOUBLE": Type.DOUBLE, "FLOAT": Type.DOUBLE, "BOOLEAN": Type.BOOL, "TIMESTAMP": Type.TIMESTAMP,
    "TIMESTAMPTZ": Type.TIMESTAMP, "DATE": Type.DATE,
}  # fmt: skip
_CASTS = {
    Type.STRING: (Type.INT, Type.DOUBLE, Type.BOOL, Type.TIMESTAMP, Type.DATE),
    Type.INT: (Type.STRING, Type.DOUBLE, Type.BOOL, Type.TIMESTAMP),
    Type.DOUBLE: (Type.STRING, Type.INT),
    Type.BOOL: (Type.STRING, Type.INT),
    Type.TIMESTAMP: (Type.STRING, Type.INT, Type.DATE),
    Type.DATE: (Type.STRING, Type.TIMESTAMP),
}
"""The casts that are allowed between plain types. A timestamp becomes an int in microseconds since the epoch; a double loses
its fraction."""

_HARMLESS = {"typed", "safe", "coalesce", "ignore_nulls", "big_int", "_type"}
"""Arguments that sqlglot sets itself, regardless of the text."""

TRUNCATED_TO = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
"""The units of date_trunc."""
TIME_PARTS = (
    "second", "minute", "hour", "day", "week", "month", "quarter", "year", "dow", "isodow", "doy", "epoch",
)  # fmt: skip
"""What `extract` can be asked for."""

_MOST_PARTS = 1 << 30
"""The largest number of a part or a group."""

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_INT_AS_DECIMAL = Type.decimal(19, 0)


class _ExpressionReader:
    """Converts sqlglot's tree to terms. `sql` and `field` are the value and the field of its errors."""

    def __init__(self, sql: str, schema: Schema, field: str) -> None:
        self.sql = sql
        self.field = field
        self.visible = schema.visible
        self.positions = {name: position for position, name in enumerate(self.visible)}

    def refuse(self, problem: str, fix: str) -> UserError:
        return UserError(self.field, self.sql, problem, fix)

    def expression(self, tree: Node, sql: str) -> Expression:
        term = self.term(tree)
        if term.type is None:
            raise self.refuse("is null without a type", "give it a type, as in cast(null as double)")
        if _depth(term) > DEEPEST:
            raise _too_deep(self.sql, self.field)
        names = tuple(self.visible)
        return Expression(sql, term.type, tuple(names[position] for position in sorted(_positions(term))), term)

    def aggregation(self, function: str, operand: Node, condition: Node | None = None) -> Aggregation:
        """condition: of `filter (where ...)`. No aggregation counts nulls, so it is of a value that is null elsewhere."""
        if isinstance(operand, exp.Star):
            if function != "count":
                raise self.refuse("only count takes *", f"name a column, as in {function}(x)")
            if condition is None:
                return Aggregation("count", None, Type.INT)
            operand = exp.true()
        if isinstance(operand, exp.Distinct):
            if function != "count" or len(operand.expressions) != 1:
                raise self.refuse("only count takes distinct, with one expression", "write count(distinct x)")
            function, operand = "count_distinct", operand.expressions[0]
        if condition is not None:
            operand = exp.Case(ifs=[exp.If(this=condition.copy(), true=operand.copy())])
        argument = self.expression(operand, operand.sql())
        if function in ("sum", "avg", "stddev", "stddev_pop", "approx_quantile") and not _is_number(argument.type):
            fix = f"convert it, as in {function}(cast(x as double))"
            raise self.refuse(f"{function} needs a number, not {argument.type}", fix)
        if function in ("count", "count_distinct", "approx_count_distinct"):
            return Aggregation(function, argument, Type.INT)
        if function in ("stddev", "stddev_pop", "approx_quantile"):
            term = self._typed(argument.term, Type.DOUBLE) if argument.type.is_decimal else argument.term
            return Aggregation(function, replace(argument, term=term, type=term.type or Type.DOUBLE), Type.DOUBLE)
        if function == "sum" and argument.type.is_decimal:
            return Aggregation(function, argument, Type.decimal(DECIMAL_DIGITS, argument.type.after))
        exact = function in ("sum", "min", "max", "first", "last")
        return Aggregation(function, argument, argument.type if exact else Type.DOUBLE)

    # Each method below reads one kind of node; see `_METHODS`.

    def term(self, node: Node) -> Term:
        method, allowed = _METHODS.get(type(node), (None, ()))
        if method is None:
            raise self._unknown(node)
        surplus = {name for name, value in node.args.items() if value} - _HARMLESS - set(allowed)
        if surplus:
            raise self.refuse(f"{node.sql()} has parts that are not supported", _supported())
        return method(self, node)

    def _unknown(self, node: Node) -> UserError:
        if type(node) in _AGGREGATE_CLASSES:
            name = _AGGREGATE_CLASSES[type(node)]
            return self.refuse(f"{name} is an aggregation", "compute it in an aggregate operator, and use its result here")
        if isinstance(node, exp.Func):
            name = str(node.this) if isinstance(node, exp.Anonymous) else node.sql_name()
            return self.refuse(f"{name.lower()} is not a known function", did_you_mean(name.lower(), FUNCTIONS))
        return self.refuse(f"{node.sql()} is not supported", _supported())

    def column(self, node: Node) -> Term:
        name = node.name
        if name not in self.positions:
            alike = [known for known in self.positions if known.lower() == name.lower()]
            if len(alike) != 1:
                raise self.refuse(f"{name} is not a column", did_you_mean(name, self.positions))
            name = alike[0]
        operation = "reserved" if name in RESERVED else "column"
        return Term(operation, self.visible[name], value=self.positions[name])

    def literal(self, node: Node) -> Term:
        if node.is_string:
            return Term("literal", Type.STRING, value=node.this)
        return self._numeral(node.this)

    def _numeral(self, text: str, sign: int = 1) -> Term:
        try:
            number = float(text)
        except ValueError:
            raise self.refuse(f"{text} is not a number", "write a number such as 15, 1.5 or 1e3") from None
        if not math.isfinite(number):
            raise self.refuse(f"{text} is too large for a double", "write at most 1.7976931348623157e308")
        if not text.isdigit():
            return Term("literal", Type.DOUBLE, value=Numeral(text, sign))
        # It is finite as a double, so it has few digits, apart from leading zeros.
        value = sign * int(text.lstrip("0") or "0")
        if not _INT_MIN <= value <= _INT_MAX:
            raise self.refuse(f"{value} is too large for an int", f"write {value}.0 for a double")
        return Term("literal", Type.INT, value=value)

    def boolean(self, node: Node) -> Term:
        return Term("literal", Type.BOOL, value=bool(node.this))

    def null(self, node: Node) -> Term:
        return Term("literal", None)

    def parentheses(self, node: Node) -> Term:
        return self.term(node.this)

    def negative(self, node: Node) -> Term:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return self._numeral(node.this.this, sign=-1)
        operand = self._number(node.this)
        return Term("negate", operand.type, (operand,))

    def arithmetic(self, node: Node) -> Term:
        operation, operands = _ARITHMETIC[type(node)], (self.term(node.left), self.term(node.right))
        if any(term.type is Type.DATE for term in operands):
            return self._date_arithmetic(operation, *operands)
        operands = (self._as_number(operands[0]), self._as_number(operands[1]))
        if any(_is_decimal(term) for term in operands) and not any(_is_inexact(term) for term in operands):
            return self._decimal_arithmetic(operation, *map(self._as_decimal, operands))
        left, right = self._alike(operands)
        return Term(operation, left.type, (left, right))

    def _date_arithmetic(self, operation: str, left: Term, right: Term) -> Term:
        """A date and a number of days, or two dates."""
        match operation, left.type, right.type:
            case "subtract", Type.DATE, Type.DATE:
                return Term("days_between", Type.INT, (left, right))
            case "add" | "subtract", Type.DATE, Type.INT:
                return Term("add_days", Type.DATE, (left, right), 1 if operation == "add" else -1)
            case "add", Type.INT, Type.DATE:
                return Term("add_days", Type.DATE, (right, left), 1)
        fix = "write a whole number of days, as in day + 7, or subtract dates: day - other"
        raise self.refuse(f"cannot {operation} {left.type} and {right.type}", fix)

    def _decimal_arithmetic(self, operation: str, left: Term, right: Term) -> Term:
        """With all digits of the result, as far as there can be so many."""
        one, other = left.type, right.type
        assert one is not None and other is not None
        if operation == "remainder":
            return Term(operation, _common_decimal((one, other)), (left, right))
        if operation == "multiply":
            before, after = one.digits - one.after + other.digits - other.after + 1, one.after + other.after
        else:
            before, after = max(one.digits - one.after, other.digits - other.after) + 1, max(one.after, other.after)
        if after > DECIMAL_DIGITS:
            fix = f"round the factors, as in round(x, {DECIMAL_DIGITS // 2})"
            raise self.refuse(f"has {after} digits after the point, more than a decimal can have", fix)
        return Term(operation, Type.decimal(min(before + after, DECIMAL_DIGITS), after), (left, right))

    def division(self, node: Node) -> Term:
        return Term("divide", Type.DOUBLE, (self._real(node.left), self._real(node.right)))

    def comparison(self, node: Node) -> Term:
        return self._compare(_COMPARISONS[type(node)], self.term(node.left), self.term(node.right))

    def _compare(self, operation: str, left: Term, right: Term) -> Term:
        return Term(operation, Type.BOOL, self._alike((left, right)))

    def connective(self, node: Node) -> Term:
        operation = "and" if isinstance(node, exp.And) else "or"
        return Term(operation, Type.BOOL, (self._condition(node.left), self._condition(node.right)))

    def negation(self, node: Node) -> Term:
        return Term("not", Type.BOOL, (self._condition(node.this),))

    def null_test(self, node: Node) -> Term:
        if not isinstance(node.expression, exp.Null):
            raise self.refuse(f"{node.sql()} is not supported", "write `is null`, `is not null`, or compare with =")
        operand = self.term(node.this)
        return Term("is_null", Type.BOOL, (self._typed(operand, operand.type or Type.BOOL),))

    def between(self, node: Node) -> Term:
        value = self.term(node.this)
        low = self._compare("greater_equal", value, self.term(node.args["low"]))
        return Term("and", Type.BOOL, (low, self._compare("less_equal", value, self.term(node.args["high"]))))

    def membership(self, node: Node) -> Term:
        """`in` with constants is one look-up; with other expressions it is a chain of comparisons."""
        value, *choices = self._alike((self.term(node.this), *(self.term(entry) for entry in node.expressions)))
        if not choices:
            raise self.refuse(f"{node.sql()} has no choices", "list the values, as in carrier in ('UA', 'AA')")
        if all(choice.operation == "literal" and choice.value is not None for choice in choices):
            return Term("in", Type.BOOL, (value,), tuple(choice.value for choice in choices))
        tests = [Term("equal", Type.BOOL, (value, choice)) for choice in choices]
        result = tests[0]
        for test in tests[1:]:
            result = Term("or", Type.BOOL, (result, test))
        return result

    def like(self, node: Node) -> Term:
        pattern = self.term(node.expression)
        if pattern.operation != "literal" or pattern.type is not Type.STRING:
            raise self.refuse("like needs a pattern in quotes", "write a literal, as in dest like 'S%'")
        matched = Term("like", Type.BOOL, (self._text(node.this),), pattern.value)
        return Term("not", Type.BOOL, (matched,)) if node.args.get("negate") else matched

    def case(self, node: Node) -> Term:
        tests: list[Term] = []
        for branch in node.args["ifs"]:
            if node.this is None:
                tests.append(self._condition(branch.this))
            else:
                tests.append(self._compare("equal", self.term(node.this), self.term(branch.this)))
        default = self.term(node.args["default"]) if node.args.get("default") else Term("literal", None)
        return self._case(tests, [*(self.term(branch.args["true"]) for branch in node.args["ifs"]), default])

    def choice(self, node: Node) -> Term:
        default = self.term(node.args["false"]) if node.args.get("false") else Term("literal", None)
        return self._case([self._condition(node.this)], [self.term(node.args["true"]), default])

    def _case(self, tests: list[Term], values: list[Term]) -> Term:
        *chosen, default = self._alike(values)
        pairs = [term for pair in zip(tests, chosen, strict=True) for term in pair]
        return Term("case", default.type, (*pairs, default))

    def coalesce(self, node: Node) -> Term:
        terms = self._alike([self.term(entry) for entry in (node.this, *node.expressions)])
        return Term("coalesce", terms[0].type, terms)

    def nullif(self, node: Node) -> Term:
        terms = self._alike((self.term(node.this), self.term(node.expression)))
        return Term("nullif", terms[0].type, terms)

    def extreme(self, node: Node) -> Term:
        terms = self._alike([self.term(entry) for entry in (node.this, *node.expressions)])
        if terms[0].type is Type.BOOL:
            raise self.refuse("greatest and least do not take bools", "use `or` and `and`")
        return Term(_EXTREMES[type(node)], terms[0].type, terms)

    def absolute(self, node: Node) -> Term:
        operand = self._number(node.this)
        return Term("abs", operand.type, (operand,))

    def rounding(self, node: Node) -> Term:
        digits = 0
        if node.args.get("decimals") is not None:
            digits_term = self.term(node.args["decimals"])
            if digits_term.operation != "literal" or digits_term.type is not Type.INT:
                raise self.refuse("round needs a whole number of digits", "write a literal, as in round(x, 2)")
            assert isinstance(digits_term.value, int)
            digits = digits_term.value
            if abs(digits) > MOST_DIGITS:
                fix = f"write a number from {-MOST_DIGITS} to {MOST_DIGITS}, as in round(x, 2)"
                raise self.refuse(f"doubles cannot be rounded to {digits} digits", fix)
        operand = self.term(node.this)
        if _is_decimal(operand):
            return self._rounded("round", operand, digits)
        return Term("round", Type.DOUBLE, (self._typed(operand, Type.DOUBLE),), digits)

    def _rounded(self, operation: str, operand: Term, digits: int) -> Term:
        """A decimal with at most so many digits after the point."""
        assert operand.type is not None
        after = min(max(digits, 0), operand.type.after)
        kind = Type.decimal(min(operand.type.digits - operand.type.after + after + 1, DECIMAL_DIGITS), after)
        return Term(operation, kind, (operand,), digits)

    def whole(self, node: Node) -> Term:
        operand = self._number(node.this)
        if _is_decimal(operand):
            return self._rounded(_ROUNDINGS[type(node)], operand, 0)
        return operand if operand.type is Type.INT else Term(_ROUNDINGS[type(node)], Type.DOUBLE, (operand,))

    def real_function(self, node: Node) -> Term:
        return Term(_REAL_FUNCTIONS[type(node)], Type.DOUBLE, (self._real(node.this),))

    def power(self, node: Node) -> Term:
        return Term("power", Type.DOUBLE, (self._real(node.this), self._real(node.expression)))

    def text_function(self, node: Node) -> Term:
        return Term(_TEXT_FUNCTIONS[type(node)], Type.STRING, (self._text(node.this),))

    def sign(self, node: Node) -> Term:
        return Term("sign", Type.INT, (self._number(node.this),))

    def logarithm(self, node: Node) -> Term:
        if node.args.get("expression") is None:
            return Term("log10", Type.DOUBLE, (self._real(node.this),))
        return Term("log", Type.DOUBLE, (self._real(node.expression), self._real(node.this)))

    def trim(self, node: Node) -> Term:
        characters = self._constant(node, "expression", "trim(s, '-')", default=" ")
        side = str(node.args.get("position") or "BOTH").lower()
        return Term("trim", Type.STRING, (self._text(node.this),), (side, characters))

    def replacement(self, node: Node) -> Term:
        example = "replace(s, '-', '')"
        texts = (self._part(node, "expression", example), self._constant(node, "replacement", example))
        return Term("replace", Type.STRING, (self._text(node.this),), texts)

    def text_position(self, node: Node) -> Term:
        return Term("position", Type.INT, (self._text(node.this),), self._part(node, "substr", "position('-' in s)"))

    def split_part(self, node: Node) -> Term:
        example = "split_part(s, '-', 1)"
        number = self._whole_constant(node, "part_index", example)
        if number == 0:
            raise self.refuse("split_part counts from 1", f"write 1 or more, or -1 for the last, as in {example}")
        return Term("split_part", Type.STRING, (self._text(node.this),), (self._part(node, "delimiter", example), number))

    def regexp_matches(self, node: Node) -> Term:
        return Term("regexp_matches", Type.BOOL, (self._text(node.this),), self._pattern(node))

    def regexp_extract(self, node: Node) -> Term:
        # sqlglot calls the third argument a position, as some databases do; in DuckDB and here it is the group.
        group = self._whole_constant(node, "position", "regexp_extract(s, '([A-Z]+)-', 1)", default=0)
        pattern, names = named_groups(self._pattern(node))
        if not 0 <= group < len(names):
            fix = f"write a number from 0, the whole match, to {len(names) - 1}"
            raise self.refuse(f"the pattern has no group {group}", fix)
        return Term("regexp_extract", Type.STRING, (self._text(node.this),), (pattern, names[group]))

    def regexp_replace(self, node: Node) -> Term:
        example = "regexp_replace(s, '[0-9]+', '#', 'g')"
        mode = self._constant(node, "position", example, default="")
        if mode not in ("", "g"):
            raise self.refuse(f"{mode!r} is not known here", f"write 'g' for all matches, as in {example}")
        pattern, by = self._pattern(node), self._constant(node, "replacement", example)
        problem = pattern_problem(pattern, by)
        if problem:
            raise self.refuse(f"{by!r} cannot replace matches of the pattern: {problem}", "write \\1 for its first group")
        return Term("regexp_replace", Type.STRING, (self._text(node.this),), (pattern, by, 1 if mode == "" else None))

    def truncated_time(self, node: Node) -> Term:
        unit = str(node.args["unit"].name).lower()
        if unit not in TRUNCATED_TO:
            raise self.refuse(f"{unit} is not a unit of date_trunc", did_you_mean(unit, TRUNCATED_TO))
        return Term("date_trunc", Type.TIMESTAMP, (self._time(node.this),), (unit, self._zone(node.args.get("zone"))))

    def extracted(self, node: Node) -> Term:
        part = str(node.this.name).lower()
        if part not in TIME_PARTS:
            raise self.refuse(f"{part} is not a part of a time", did_you_mean(part, TIME_PARTS))
        of, zone = node.expression.unnest(), None
        if isinstance(of, exp.AtTimeZone):
            of, zone = of.this, of.args["zone"]
        kind = Type.DOUBLE if part == "epoch" else Type.INT
        return Term("extract", kind, (self._time(of),), (part, self._zone(zone)))

    def called(self, node: Node) -> Term:
        """A function that sqlglot has no class for."""
        name, operands = str(node.this).lower(), node.expressions
        if name == "regexp_matches" and len(operands) == 2:
            return self.regexp_matches(exp.RegexpLike(this=operands[0], expression=operands[1]))
        if name == "to_timestamp" and len(operands) == 1:
            return Term("to_timestamp", Type.TIMESTAMP, (self._number(operands[0]),))
        if name == "to_timestamp" and len(operands) == 2:
            form = operands[1].name if isinstance(operands[1], exp.Literal) and operands[1].is_string else ""
            if not _is_time_format(form):
                fix = "write it as strptime of Python does, in quotes: to_timestamp(s, '%d.%m.%Y %H:%M')"
                raise self.refuse(f"{operands[1].sql()} is not the format of a time", fix)
            return Term("parse_time", Type.TIMESTAMP, (self._text(operands[0]),), form)
        if name in FUNCTIONS:
            raise self.refuse(f"{name} does not take {len(operands)} arguments", f"write {FUNCTIONS[name][0]}")
        raise self._unknown(node)

    def length(self, node: Node) -> Term:
        return Term("length", Type.INT, (self._text(node.this),))

    def substring(self, node: Node) -> Term:
        bounds = [self.term(node.args[name]) for name in ("start", "length") if node.args.get(name) is not None]
        numbers = [bound.value for bound in bounds if bound.operation == "literal" and bound.type is Type.INT]
        start, *length = [number for number in numbers if isinstance(number, int)] or [0]
        if len(numbers) != len(bounds) or start < 1 or min(length, default=0) < 0:
            fix = "write whole numbers, the first from 1, as in substring(tailnum, 1, 2)"
            raise self.refuse(f"{node.sql()} does not name a part of a text", fix)
        return Term("substring", Type.STRING, (self._text(node.this),), (start, *length))

    def concat(self, node: Node) -> Term:
        operands = node.expressions if isinstance(node, exp.Concat) else [node.this, node.expression]
        return Term("concat", Type.STRING, tuple(self._text(operand) for operand in operands))

    def cast(self, node: Node) -> Term:
        target = _cast_type(node.to)
        if target is None:
            fix = f"cast to one of {', '.join(PLAIN_TYPES)}, or to a decimal, as in cast(x as decimal(18, 2))"
            raise self.refuse(f"{node.to.sql().lower()} is not a known type", fix)
        of = node.this.unnest()
        if target is Type.DATE and isinstance(of, exp.AtTimeZone):
            return Term("local_date", target, (self._time(of.this),), self._zone(of.args["zone"]))
        operand = self.term(node.this)
        is_text = operand.operation == "literal" and operand.type is Type.STRING
        if operand.type in (target, None) or (is_text and target in (Type.TIMESTAMP, Type.DATE)):
            return self._typed(operand, target)
        if operand.type is Type.TIMESTAMP and target is Type.DATE:
            return Term("local_date", target, (operand,), self._zone(None))
        if operand.type is not None and not _can_cast(operand.type, target):
            fix = f"{operand.type} can be cast to {', '.join(kind for kind in PLAIN_TYPES if _can_cast(operand.type, kind))}"
            raise self.refuse(f"{operand.type} cannot be cast to {target}", fix)
        return Term("cast", target, (operand,))

    # Constants.

    def _constant(self, node: Node, name: str, example: str, default: str | None = None) -> str:
        """The text of an argument that must be a literal."""
        given = node.args.get(name)
        if given is None and default is not None:
            return default
        if not isinstance(given, exp.Literal) or not given.is_string:
            raise self.refuse(f"{node.sql()} needs a text in quotes", f"write a literal, as in {example}")
        return str(given.this)

    def _part(self, node: Node, name: str, example: str) -> str:
        """The same, of a text that is looked for."""
        text = self._constant(node, name, example)
        if not text:
            raise self.refuse(f"{node.sql()} looks for an empty text", f"write at least one character, as in {example}")
        return text

    def _whole_constant(self, node: Node, name: str, example: str, default: int | None = None) -> int:
        given = node.args.get(name)
        if given is None and default is not None:
            return default
        term = self.term(given) if given is not None else Term("literal", None)
        if term.operation != "literal" or term.type is not Type.INT or abs(int(str(term.value))) > _MOST_PARTS:
            raise self.refuse(f"{node.sql()} needs a whole number", f"write a literal, as in {example}")
        return int(str(term.value))

    def _pattern(self, node: Node) -> str:
        pattern = self._constant(node, "expression", "regexp_matches(s, '^[A-Z]+-')")
        problem = pattern_problem(pattern)
        if problem:
            raise self.refuse(f"{pattern!r} is not a pattern: {problem}", "write it in the syntax of RE2, such as '^[A-Z]+-'")
        return pattern

    def _zone(self, node: Node | None) -> str:
        if node is None:
            return "UTC"
        name = node.name if isinstance(node, exp.Literal) and node.is_string else ""
        if not _is_zone(name):
            raise self.refuse(f"{node.sql()} is not a time zone", "write its name in quotes, such as 'Europe/Berlin'")
        return str(name)

    # Types.

    def _time(self, node: Node) -> Term:
        return self._typed(self.term(node), Type.TIMESTAMP)

    def _typed(self, term: Term, wanted: Type) -> Term:
        """The term with the type `wanted`, by an implicit conversion if necessary. UserError if there is none."""
        if term.type is wanted:
            return term
        if term.type is None:
            return Term("literal", wanted)
        if term.type is Type.INT and wanted is Type.DOUBLE:
            if isinstance(term.value, int) and term.operation == "literal":
                return Term("literal", wanted, value=float(term.value))
            return Term("cast", wanted, (term,))
        if _is_decimal(term) and wanted is Type.DOUBLE:
            return Term("cast", wanted, (term,))
        if term.type is Type.DATE and wanted is Type.TIMESTAMP:
            return Term("cast", wanted, (term,))
        if wanted is Type.DATE and term.operation == "literal" and isinstance(term.value, str):
            day = parse_date(term.value)
            if day is None:
                raise self.refuse(f"{term.value!r} is not a date", "write it as '2013-01-31'")
            return Term("literal", wanted, value=day)
        if wanted is Type.TIMESTAMP and term.operation == "literal" and isinstance(term.value, str):
            time = parse_timestamp(term.value)
            if time is None:
                raise self.refuse(f"{term.value!r} is not a timestamp", "write it as '2013-01-01T05:10:00Z'")
            return Term("literal", wanted, value=time)
        raise self.refuse(f"has type {term.type} where {wanted} is needed", f"try cast(... as {wanted})")

    def _alike(self, terms: Iterable[Term]) -> tuple[Term, ...]:
        """The terms, converted to one type."""
        given = tuple(terms)
        if any(_is_decimal(term) for term in given):
            return self._alike_decimals(given)
        kinds = [kind for kind in PLAIN_TYPES if any(term.type is kind for term in given)]
        if not kinds:
            raise self.refuse("has only nulls without a type", "give one a type, as in cast(null as double)")
        if kinds == list(_NUMERIC):
            return tuple(self._typed(term, Type.DOUBLE) for term in given)
        if kinds[-1] in (Type.TIMESTAMP, Type.DATE) and set(kinds) <= {Type.STRING, Type.TIMESTAMP, Type.DATE}:
            wanted = Type.TIMESTAMP if Type.TIMESTAMP in kinds else Type.DATE
            return tuple(self._typed(term, wanted) for term in given)
        if len(kinds) > 1:
            raise self.refuse(f"mixes {' and '.join(kinds)}", f"use cast(... as {kinds[0]}), or use values of one type")
        return tuple(self._typed(term, kinds[0]) for term in given)

    def _alike_decimals(self, given: tuple[Term, ...]) -> tuple[Term, ...]:
        """A double among decimals makes doubles; ints, and numbers that are written out, become decimals."""
        others = {term.type for term in given if term.type is not None and not _is_number(term.type)}
        if others:
            fix = "use cast(... as ...), or use values of one type"
            raise self.refuse(f"mixes decimal and {', '.join(sorted(others))}", fix)
        if any(_is_inexact(term) for term in given):
            return tuple(self._typed(term, Type.DOUBLE) for term in given)
        decimals = [term if term.type is None else self._as_decimal(term) for term in given]
        kind = _common_decimal([term.type for term in decimals if term.type is not None])
        return tuple(self._widened(term, kind) for term in decimals)

    def _as_decimal(self, term: Term) -> Term:
        """An int or a number as it is written, as a decimal with all its digits."""
        if _is_decimal(term):
            return term
        if term.type is Type.INT and term.operation != "literal":
            return Term("cast", _INT_AS_DECIMAL, (term,))
        value = Decimal(term.value.text if isinstance(term.value, Numeral) else str(term.value))
        kind = _decimal_of(value)
        if kind is None:
            raise self.refuse(f"{value} has too many digits for a decimal", f"write at most {DECIMAL_DIGITS}")
        return Term("literal", kind, value=value)

    def _widened(self, term: Term, kind: Type) -> Term:
        if term.type is kind:
            return term
        return Term("literal", kind, value=term.value) if term.operation == "literal" else Term("cast", kind, (term,))

    def _number(self, node: Node) -> Term:
        return self._as_number(self.term(node))

    def _as_number(self, term: Term) -> Term:
        return term if term.type is not None and _is_number(term.type) else self._typed(term, Type.DOUBLE)

    def _real(self, node: Node) -> Term:
        return self._typed(self.term(node), Type.DOUBLE)

    def _text(self, node: Node) -> Term:
        return self._typed(self.term(node), Type.STRING)

    def _condition(self, node: Node) -> Term:
        return self._typed(self.term(node), Type.BOOL)


_ONE = ("this",)
_TWO = ("this", "expression")
_MANY = ("this", "expressions")

_METHODS: dict[type[Node], tuple[Callable[[_ExpressionReader, Any], Term], tuple[str, ...]]] = {
    exp.Column: (_ExpressionReader.column, _ONE),
    exp.Literal: (_ExpressionReader.literal, ("this", "is_string")),
    exp.Boolean: (_ExpressionReader.boolean, _ONE),
    exp.Null: (_ExpressionReader.null, ()),
    exp.Paren: (_ExpressionReader.parentheses, _ONE),
    exp.Neg: (_ExpressionReader.negative, _ONE),
    exp.Div: (_ExpressionReader.division, _TWO),
    exp.And: (_ExpressionReader.connective, _TWO),
    exp.Or: (_ExpressionReader.connective, _TWO),
    exp.Not: (_ExpressionReader.negation, _ONE),
    exp.Is: (_ExpressionReader.null_test, _TWO),
    exp.Between: (_ExpressionReader.between, ("this", "low", "high")),
    exp.In: (_ExpressionReader.membership, _MANY),
    exp.Like: (_ExpressionReader.like, (*_TWO, "negate")),
    exp.Case: (_ExpressionReader.case, ("this", "ifs", "default")),
    exp.If: (_ExpressionReader.choice, ("this", "true", "false")),
    exp.Coalesce: (_ExpressionReader.coalesce, _MANY),
    exp.Nullif: (_ExpressionReader.nullif, _TWO),
    exp.Abs: (_ExpressionReader.absolute, _ONE),
    exp.Round: (_ExpressionReader.rounding, ("this", "decimals")),
    exp.Pow: (_ExpressionReader.power, _TWO),
    exp.Length: (_ExpressionReader.length, _ONE),
    exp.Substring: (_ExpressionReader.substring, ("this", "start", "length")),
    exp.Concat: (_ExpressionReader.concat, ("expressions",)),
    exp.DPipe: (_ExpressionReader.concat, _TWO),
    exp.Cast: (_ExpressionReader.cast, ("this", "to")),
    exp.Sign: (_ExpressionReader.sign, _ONE),
    exp.Log: (_ExpressionReader.logarithm, _TWO),
    exp.Trim: (_ExpressionReader.trim, (*_TWO, "position")),
    exp.Replace: (_ExpressionReader.replacement, (*_TWO, "replacement")),
    exp.StrPosition: (_ExpressionReader.text_position, ("this", "substr")),
    exp.SplitPart: (_ExpressionReader.split_part, ("this", "delimiter", "part_index")),
    exp.RegexpLike: (_ExpressionReader.regexp_matches, _TWO),
    exp.RegexpExtract: (_ExpressionReader.regexp_extract, (*_TWO, "position")),
    exp.RegexpReplace: (_ExpressionReader.regexp_replace, (*_TWO, "replacement", "position")),
    exp.DateTrunc: (_ExpressionReader.truncated_time, ("this", "unit", "zone")),
    exp.Extract: (_ExpressionReader.extracted, _TWO),
    exp.Anonymous: (_ExpressionReader.called, _MANY),
    **dict.fromkeys(_COMPARISONS, (_ExpressionReader.comparison, _TWO)),
    **dict.fromkeys(_ARITHMETIC, (_ExpressionReader.arithmetic, _TWO)),
    **dict.fromkeys(_REAL_FUNCTIONS, (_ExpressionReader.real_function, _ONE)),
    **dict.fromkeys(_ROUNDINGS, (_ExpressionReader.whole, _ONE)),
    **dict.fromkeys(_TEXT_FUNCTIONS, (_ExpressionReader.text_function, _ONE)),
    **dict.fromkeys(_EXTREMES, (_ExpressionReader.extreme, _MANY)),
}
"""For each kind of node: the method that reads it, and the arguments that the node may have."""


def _is_zone(name: str) -> bool:
    """Whether the time zone is in the database of this machine, which is the one that the operators use."""
    try:
        pc.local_timestamp(pa.array([0], pa.timestamp("us", name)))
    except (pa.ArrowException, ValueError):
        return False
    return bool(name)


def _is_time_format(form: str) -> bool:
    """Whether `strptime` knows the format, and it has a directive."""
    try:
        return _EPOCH.strftime(form) != form and datetime.strptime(_EPOCH.strftime(form), form) is not None
    except ValueError:
        return False


def _is_decimal(term: Term) -> bool:
    return term.type is not None and term.type.is_decimal


def _is_inexact(term: Term) -> bool:
    """Whether a term is a double other than a number that is written out."""
    return term.type is Type.DOUBLE and not (term.operation == "literal" and isinstance(term.value, Numeral))


def _is_number(kind: Type) -> bool:
    return kind in _NUMERIC or kind.is_decimal


def _decimal_of(value: Decimal) -> Type | None:
    """The narrowest type that holds the decimal; None if there is none."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    after = max(-exponent, 0)
    all_digits = max(len(digits) + max(exponent, 0), after, 1)
    return Type.decimal(all_digits, after) if all_digits <= DECIMAL_DIGITS else None


def _common_decimal(kinds: Iterable[Type]) -> Type:
    """The type that holds the values of all, as far as there can be so many digits: those after the point are kept."""
    given = tuple(kinds)
    before, after = max(kind.digits - kind.after for kind in given), max(kind.after for kind in given)
    return Type.decimal(min(before + after, DECIMAL_DIGITS), after)


def _cast_type(node: Node) -> Type | None:
    """The type that a cast names; None if there is no such type."""
    if node.this.name == "DECIMAL":
        parts = [part.this.name for part in node.expressions]
        try:
            return Type(f"decimal({', '.join(parts)})")
        except ValueError:
            return None
    return None if node.expressions else _CAST_NAMES.get(node.this.name)


def _can_cast(source: Type, target: Type) -> bool:
    if source.is_decimal or target.is_decimal:
        other = target if source.is_decimal else source
        return other.is_decimal or other in (Type.STRING, Type.INT, Type.DOUBLE)
    return target in _CASTS[source]


def _positions(term: Term) -> set[int]:
    if term.operation in ("column", "reserved"):
        assert isinstance(term.value, int)
        return {term.value}
    return {position for argument in term.arguments for position in _positions(argument)}


def _depth(term: Term) -> int:
    """The number of nested levels of terms, counted without recursion, which could be too deep."""
    depth, level = 0, [term]
    while level:
        depth, level = depth + 1, [argument for outer in level for argument in outer.arguments]
    return depth


def _supported() -> str:
    return f"use arithmetic, comparisons, and, or, not, in, like, between, case, and: {', '.join(FUNCTIONS)}"
