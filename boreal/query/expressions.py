"""SQL expressions: parsed by sqlglot, checked against a schema, and converted to a small typed tree.

The rest of the project uses only this tree; `operators.expressions` evaluates it. FUNCTIONS, AGGREGATIONS and the tables
below list the language; anything else is refused. Types are those of the query file. Three rules differ from some databases:

    `/` always returns a double.
    An operation without a finite result returns null, so that no tuple can stop a query: x / 0, sqrt(-1), an overflow, a
    sum of ints beyond int64, a cast of text that is not a number, a cast of an int to a time outside the years 1 to 9999.
    Text becomes a timestamp only in a literal that is compared or combined with a timestamp.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from boreal.model.errors import UserError
from boreal.model.schema import FIRST_TIME_US, LAST_TIME_US, RESERVED, Schema, Type
from boreal.query.spec import did_you_mean

OPERATORS = {
    "x + y": "Sum.",
    "x - y": "Difference.",
    "x * y": "Product.",
    "x / y": "Quotient, always a double.",
    "x % y": "Remainder, with the sign of x.",
    "-x": "Negation.",
    "x = y": "Whether both are equal.",
    "x <> y": "Whether they differ; also `!=`.",
    "x < y": "Whether x is less.",
    "x <= y": "Whether x is less or equal.",
    "x > y": "Whether x is greater.",
    "x >= y": "Whether x is greater or equal.",
    "p and q": "Whether both conditions are true.",
    "p or q": "Whether one of the conditions is true.",
    "not p": "Whether the condition is false.",
    "x is null": "Whether x is null; also `is not null`.",
    "x between y and z": "As `x >= y and x <= z`; also `not between`.",
    "s in ('UA', 'AA')": "Whether s is one of the values; also `not in`.",
    "s like 'S%'": "Whether the text matches the pattern: `%` is any text, `_` any character; also `not like`.",
    "s || t": "As `concat(s, t)`.",
    "case when p then x else y end": "The value after the first condition that is true; null where none is, without `else`.",
    "case s when 'UA' then x else y end": "The same, with comparisons of s as the conditions.",
    "if(p, x, y)": "As `case when p then x else y end`.",
}
"""What stands between operands, by example: p, q are conditions, x, y, z numbers, s, t texts. Columns, parentheses and the
literals `1`, `1.5`, `1e3`, `'text'`, `true`, `false` and `null` need no entry."""

FUNCTIONS = {
    "abs": ("abs(x)", "The absolute value."),
    "cast": ("cast(x as string)", "The value as another type: string, int, double, bool or timestamp."),
    "ceil": ("ceil(x)", "The smallest whole number that is not less."),
    "coalesce": ("coalesce(x, y)", "The first argument that is not null."),
    "concat": ("concat(s, t)", "The texts one after the other; null where one is null."),
    "exp": ("exp(x)", "e to the power of x."),
    "floor": ("floor(x)", "The largest whole number that is not greater."),
    "greatest": ("greatest(x, y)", "The largest argument; nulls are left out."),
    "least": ("least(x, y)", "The smallest argument; nulls are left out."),
    "length": ("length(s)", "The number of characters."),
    "ln": ("ln(x)", "The natural logarithm."),
    "lower": ("lower(s)", "The text in lower case."),
    "nullif": ("nullif(x, y)", "x, or null where it equals y."),
    "power": ("power(x, y)", "x to the power of y."),
    "round": ("round(x, 2)", "x rounded to so many digits after the point, by default to none."),
    "sqrt": ("sqrt(x)", "The square root."),
    "substring": ("substring(s, 1, 2)", "The part of the text from this character on, counted from 1, and of this length."),
    "upper": ("upper(s)", "The text in upper case."),
}
"""The functions that an expression may call, each with an example."""

AGGREGATIONS = {
    "count(*)": "The number of rows.",
    "count(x)": "The number of rows where x is not null.",
    "count(distinct x)": "The number of different values that are not null.",
    "sum(x)": "The sum of numbers.",
    "avg(x)": "The mean of numbers; also `mean(x)`.",
    "min(x)": "The smallest value.",
    "max(x)": "The largest value.",
    "stddev(x)": "The standard deviation of a sample; null for fewer than two values.",
    "stddev_pop(x)": "The standard deviation of the whole.",
    "first(x)": "The first value that is not null, by time and then by arrival.",
    "last(x)": "The last value that is not null, by time and then by arrival.",
}
"""What an aggregate may compute, x being any expression."""

DEEPEST = 250
"""The maximum depth of an expression; each term of an `or` adds one level. Expressions are parsed and evaluated recursively."""

MOST_DIGITS = 308
"""The maximum number of digits for `round`, before or after the decimal point: doubles have no larger powers of ten."""


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
    """Of a column: its position in the batch. Of a literal: int, float, str, bool, or None for null; a timestamp is an int in
    microseconds since the Unix epoch. Some operations have a constant here."""


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
    """count, count_distinct, sum, avg, min, max, stddev, stddev_pop, first or last."""
    argument: Expression | None
    """The expression that is aggregated; None only for count(*)."""
    type: Type
    """The type of the result."""


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
    function = _AGGREGATE_CLASSES.get(type(tree))
    if isinstance(tree, exp.Anonymous) and str(tree.this).lower() == "mean":
        function = "avg"
    if function is None:
        fix = f"write one of {', '.join(AGGREGATIONS)}; combine several in a map that reads this operator"
        raise reader.refuse("is not an aggregation", fix)
    operands = tree.expressions if isinstance(tree, exp.Anonymous) else [tree.this, *tree.expressions]
    if len(operands) != 1 or operands[0] is None:
        raise reader.refuse(f"{function} takes one argument", f"write one of {', '.join(AGGREGATIONS)}")
    return reader.aggregation(function, operands[0])


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
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    time = (moment - _EPOCH) // timedelta(microseconds=1)
    return time if FIRST_TIME_US <= time <= LAST_TIME_US else None  # the zone can move it out of the years 1 to 9999


def format_timestamp(time: int) -> str:
    """ISO 8601 in UTC, without trailing zeros in the fraction of the second: "2013-01-01T05:10:00Z"."""
    text = (_EPOCH + timedelta(microseconds=time)).replace(tzinfo=None).isoformat(timespec="microseconds")
    return text.rstrip("0").rstrip(".") + "Z"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
}  # fmt: skip

_CAST_NAMES = {
    "TEXT": Type.STRING, "VARCHAR": Type.STRING, "CHAR": Type.STRING, "INT": Type.INT, "BIGINT": Type.INT,
    "DOUBLE": Type.DOUBLE, "FLOAT": Type.DOUBLE, "BOOLEAN": Type.BOOL, "TIMESTAMP": Type.TIMESTAMP,
    "TIMESTAMPTZ": Type.TIMESTAMP,
}  # fmt: skip
_CASTS = {
    Type.STRING: (Type.INT, Type.DOUBLE, Type.BOOL, Type.TIMESTAMP),
    Type.INT: (Type.STRING, Type.DOUBLE, Type.BOOL, Type.TIMESTAMP),
    Type.DOUBLE: (Type.STRING, Type.INT),
    Type.BOOL: (Type.STRING, Type.INT),
    Type.TIMESTAMP: (Type.STRING, Type.INT),
}
"""The casts that are allowed. A timestamp becomes an int in microseconds since the epoch; a double loses its fraction."""

_HARMLESS = {"typed", "safe", "coalesce", "ignore_nulls", "big_int", "_type"}
"""Arguments that sqlglot sets itself, regardless of the text."""

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1


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

    def aggregation(self, function: str, operand: Node) -> Aggregation:
        if isinstance(operand, exp.Star):
            if function != "count":
                raise self.refuse("only count takes *", f"name a column, as in {function}(x)")
            return Aggregation("count", None, Type.INT)
        if isinstance(operand, exp.Distinct):
            if function != "count" or len(operand.expressions) != 1:
                raise self.refuse("only count takes distinct, with one expression", "write count(distinct x)")
            function, operand = "count_distinct", operand.expressions[0]
        argument = self.expression(operand, operand.sql())
        if function in ("sum", "avg", "stddev", "stddev_pop") and argument.type not in _NUMERIC:
            fix = f"convert it, as in {function}(cast(x as double))"
            raise self.refuse(f"{function} needs a number, not {argument.type}", fix)
        if function in ("count", "count_distinct"):
            return Aggregation(function, argument, Type.INT)
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
            return Term("literal", Type.DOUBLE, value=number)
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
        if isinstance(node.this, exp.Literal) and not node.this.is_string and node.this.this.isdigit():
            return self._numeral(node.this.this, sign=-1)
        operand = self._number(node.this)
        return Term("negate", operand.type, (operand,))

    def arithmetic(self, node: Node) -> Term:
        left, right = self._alike((self._number(node.left), self._number(node.right)))
        return Term(_ARITHMETIC[type(node)], left.type, (left, right))

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
        return Term("round", Type.DOUBLE, (self._real(node.this),), digits)

    def whole(self, node: Node) -> Term:
        operand = self._number(node.this)
        return operand if operand.type is Type.INT else Term(_ROUNDINGS[type(node)], Type.DOUBLE, (operand,))

    def real_function(self, node: Node) -> Term:
        return Term(_REAL_FUNCTIONS[type(node)], Type.DOUBLE, (self._real(node.this),))

    def power(self, node: Node) -> Term:
        return Term("power", Type.DOUBLE, (self._real(node.this), self._real(node.expression)))

    def text_function(self, node: Node) -> Term:
        return Term(_TEXT_FUNCTIONS[type(node)], Type.STRING, (self._text(node.this),))

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
        target = None if node.to.expressions else _CAST_NAMES.get(node.to.this.name)
        if target is None:
            fix = f"cast to one of {', '.join(Type)}"
            raise self.refuse(f"{node.to.sql().lower()} is not a known type", fix)
        operand = self.term(node.this)
        if operand.type in (target, None) or (isinstance(operand.value, str) and target is Type.TIMESTAMP):
            return self._typed(operand, target)
        if operand.type is not None and target not in _CASTS[operand.type]:
            fix = f"{operand.type} can be cast to {', '.join(_CASTS[operand.type])}"
            raise self.refuse(f"{operand.type} cannot be cast to {target}", fix)
        return Term("cast", target, (operand,))

    # Types.

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
        if wanted is Type.TIMESTAMP and term.operation == "literal" and isinstance(term.value, str):
            time = parse_timestamp(term.value)
            if time is None:
                raise self.refuse(f"{term.value!r} is not a timestamp", "write it as '2013-01-01T05:10:00Z'")
            return Term("literal", wanted, value=time)
        raise self.refuse(f"has type {term.type} where {wanted} is needed", f"try cast(... as {wanted})")

    def _alike(self, terms: Iterable[Term]) -> tuple[Term, ...]:
        """The terms, converted to one type."""
        given = tuple(terms)
        kinds = [kind for kind in Type if any(term.type is kind for term in given)]
        if not kinds:
            raise self.refuse("has only nulls without a type", "give one a type, as in cast(null as double)")
        if kinds == list(_NUMERIC):
            return tuple(self._typed(term, Type.DOUBLE) for term in given)
        if kinds == [Type.STRING, Type.TIMESTAMP]:
            return tuple(self._typed(term, Type.TIMESTAMP) for term in given)
        if len(kinds) > 1:
            raise self.refuse(f"mixes {' and '.join(kinds)}", f"use cast(... as {kinds[0]}), or use values of one type")
        return tuple(self._typed(term, kinds[0]) for term in given)

    def _number(self, node: Node) -> Term:
        term = self.term(node)
        return term if term.type in _NUMERIC else self._typed(term, Type.DOUBLE)

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
    **dict.fromkeys(_COMPARISONS, (_ExpressionReader.comparison, _TWO)),
    **dict.fromkeys(_ARITHMETIC, (_ExpressionReader.arithmetic, _TWO)),
    **dict.fromkeys(_REAL_FUNCTIONS, (_ExpressionReader.real_function, _ONE)),
    **dict.fromkeys(_ROUNDINGS, (_ExpressionReader.whole, _ONE)),
    **dict.fromkeys(_TEXT_FUNCTIONS, (_ExpressionReader.text_function, _ONE)),
    **dict.fromkeys(_EXTREMES, (_ExpressionReader.extreme, _MANY)),
}
"""For each kind of node: the method that reads it, and the arguments that the node may have."""


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
