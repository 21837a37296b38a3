"""A query written in SQL, read into the mapping that a query file holds.

    CREATE STREAM ewr (carrier string, dep_delay double) WITH (topic = 'flights.ewr', time = 'departed_at');
    CREATE VIEW late AS SELECT * FROM ewr WHERE dep_delay > 15;
    CREATE QUERY departures WITH (delay_threshold = '3s') AS
    SELECT carrier, count(*) AS flights FROM late GROUP BY TUMBLE('10m'), carrier;

A view is an operator. The query's own SELECT is the operator that clients read. In WITH stand the other fields of the file,
dotted where they are nested. sqlglot finds the tokens; expressions are kept as they are written, since
`boreal.query.expressions` reads them, whichever form they come from. A SELECT with several clauses is several operators:
NAME_where, NAME_joined and so on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlglot import TokenType

from boreal.model.errors import UserError
from boreal.query.sql_text import Tokens

STATEMENTS = {
    "stream": "CREATE STREAM ewr (carrier string, dep_delay double) WITH (topic = 'flights.ewr', time = 'departed_at')",
    "view": "CREATE VIEW late AS SELECT * FROM ewr WHERE dep_delay > 15",
    "query": "CREATE QUERY departures AS SELECT carrier, count(*) AS n FROM late GROUP BY TUMBLE('10m'), carrier",
}
"""Each kind of statement, by example."""

_BEGINNING = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*create\s", re.IGNORECASE | re.DOTALL)

_CLAUSES = (
    TokenType.SELECT, TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING, TokenType.QUALIFY,
    TokenType.ORDER_BY, TokenType.LIMIT,
)  # fmt: skip
"""In the order in which a SELECT has them."""

_UNITS = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}
_RIDING_ALONG = ("time", "window_start", "window_end")
_JOIN = "FROM a JOIN b ON a.k = b.k AND b.time BETWEEN a.time - INTERVAL '30m' AND a.time + INTERVAL '30m'"
_OWN = "FROM tagger(trades, above => 100)"
_LOOKUP = "FROM a ASOF JOIN b ON a.k = b.k AND a.time >= b.time"
_TOP = "SELECT *, row_number() OVER (PARTITION BY TUMBLE('1h') ORDER BY delay DESC) AS rank FROM late QUALIFY rank <= 5"


def is_sql(text: str) -> bool:
    """Whether the text is a query in SQL, and not YAML or JSON."""
    return _BEGINNING.match(text) is not None


@dataclass
class SqlDocument:
    """What a text in SQL says."""

    content: dict[str, Any]
    """As a query file in YAML would hold it."""
    places: dict[str, Tokens]
    """What was written for each path of the file that something was written for."""

    def located(self, error: UserError) -> UserError:
        """The same refusal with the line and the column of what is refused."""
        path = error.field
        while path not in self.places and "." in path:
            path = path.rpartition(".")[0]
        if path not in self.places:
            return error
        return UserError(error.field, error.value, f"{error.problem} ({self.places[path].place})", error.fix)


def read_sql(text: str) -> SqlDocument:
    """The mapping of a query in SQL. UserError, with line and column, for what is not in the language above."""
    reader = _Reader()
    for statement in Tokens.of(text).split(TokenType.SEMICOLON):
        if len(statement):
            reader.statement(statement)
    if "name" not in reader.content:
        raise UserError("query", None, "has no CREATE QUERY", f"add one, such as: {STATEMENTS['query']}")
    return SqlDocument(reader.content, reader.places)


@dataclass
class _Step:
    """An operator without its name and its input."""

    suffix: str
    """Its name ends so if another follows it in the same SELECT."""
    kind: str
    fields: dict[str, Any]
    places: dict[str, Tokens] = field(default_factory=dict)
    inputs: object = None
    """Of a join or a union; others read the step before."""


class _Reader:
    """Reads statement by statement into `content`."""

    def __init__(self) -> None:
        self.streams: dict[str, Any] = {}
        self.operators: dict[str, Any] = {}
        self.content: dict[str, Any] = {}
        self.places: dict[str, Tokens] = {}

    def statement(self, tokens: Tokens) -> None:
        kind, name = tokens.word(1), tokens[2:3].name
        if tokens.kind() is not TokenType.CREATE or kind not in STATEMENTS:
            fix = "write CREATE STREAM, CREATE VIEW or CREATE QUERY"
            raise tokens[:2].refuse("query", "begins no statement of a query", fix)
        if name is None:
            raise tokens[2:3].refuse("query", f"CREATE {kind.upper()} needs a name", f"write it as in: {STATEMENTS[kind]}")
        rest = tokens[3:]
        if kind == "stream":
            self._stream(name, rest)
        elif kind == "view":
            if name in self.operators:
                raise tokens.refuse(f"operators.{name}", "there are two views of this name", "rename one of them")
            made = self._select(name, self._after_as(rest, f"operators.{name}"))
            if made != name:
                raise rest.refuse(f"operators.{name}", f"the view only repeats {made}", f"read {made} itself")
        else:
            self._query(name, rest)

    def _stream(self, name: str, rest: Tokens) -> None:
        path = f"streams.{name}"
        if name in self.streams:
            raise rest.refuse(path, "there are two streams of this name", "rename one of them")
        groups = rest.group()
        if groups is None:
            raise rest[:1].refuse(path, "has no columns", f"write them as in: {STATEMENTS['stream']}")
        inside, rest = groups
        schema: dict[str, object] = {}
        for column in inside.split(TokenType.COMMA):
            title = column[:1].name
            if title is None or len(column) < 2:
                raise column.refuse(f"{path}.schema", "is not a column", "write NAME TYPE, such as carrier string")
            if title in schema:
                raise column.refuse(f"{path}.schema.{title}", "there are two columns of this name", "rename one of them")
            schema[title] = self._column(column[1:], f"{path}.schema.{title}")
            self.places[f"{path}.schema.{title}"] = column
        options, rest = self._options(rest, f"{path}.")
        if len(rest):
            raise rest.refuse(path, "is not part of CREATE STREAM", f"write it as in: {STATEMENTS['stream']}")
        self.places[path] = inside
        self.streams[name] = {**options, "schema": schema}

    def _column(self, tokens: Tokens, path: str) -> object:
        """What follows the name of a column: TYPE, TYPE PATH 'user.id', or TYPE FROM 'key'."""
        at = next((index for index in tokens.outer() if tokens.word(index) in ("path", "from")), len(tokens))
        kind = tokens[:at].source.lower()
        if at == len(tokens):
            return kind
        if len(tokens) != at + 2 or tokens.kind(at + 1) is not TokenType.STRING:
            fix = "write it in quotes, as in user_id int PATH 'user.id', or user_id int FROM 'key'"
            raise tokens[at:].refuse(path, "is not a place", fix)
        return {"type": kind, tokens.word(at): str(tokens.tokens[at + 1].text)}

    def _query(self, name: str, rest: Tokens) -> None:
        if "name" in self.content:
            fix = "keep one of them, or write a file for each"
            raise rest.refuse("name", f"is a second query, beside {self.content['name']}", fix)
        options, select = self._options(rest, "")
        for key in ("name", "streams", "operators", "output"):
            if key in options:
                raise self.places[key].refuse(key, f"{key} stands in the statements themselves", "leave it out")
        select = self._after_as(select, "query")
        self.places["output"] = select
        output = self._select(name, select)
        self.content = {
            "name": name, "streams": self.streams, "operators": self.operators, "output": output, **options,
        }  # fmt: skip

    def _after_as(self, tokens: Tokens, path: str) -> Tokens:
        if tokens.kind() is not TokenType.ALIAS or tokens.kind(1) is not TokenType.SELECT:
            raise tokens[:1].refuse(path, "needs AS SELECT here", f"write it as in: {STATEMENTS['view']}")
        return tokens[1:]

    # WITH

    def _options(self, tokens: Tokens, path: str) -> tuple[dict[str, Any], Tokens]:
        """(The fields in WITH, nested as their dots say; what follows)."""
        if tokens.kind() is not TokenType.WITH:
            return {}, tokens
        groups = tokens[1:].group()
        if groups is None:
            fix = "write WITH (delay_threshold = '3s')"
            raise tokens[:2].refuse(path.rstrip(".") or "query", "WITH needs parentheses", fix)
        found: dict[str, Any] = {}
        for entry in groups[0].split(TokenType.COMMA):
            equals = entry.find(TokenType.EQ)
            keys = [part.name or "" for part in entry[:equals].split(TokenType.DOT)]
            if not all(keys) or equals == len(entry):
                raise entry.refuse(path.rstrip(".") or "query", "is not a field and its value", "write delay_threshold = '3s'")
            place = path + ".".join(keys)
            inner = found
            for key in keys[:-1]:
                inner = inner.setdefault(key, {})
                if not isinstance(inner, dict):
                    raise entry.refuse(place, f"{key} has a value already", "write either the field or its parts")
            if keys[-1] in inner:
                raise entry.refuse(place, "is written twice", "keep one of the two")
            inner[keys[-1]] = self._value(entry[equals + 1 :], place)
            self.places[place] = entry
        return found, groups[1]

    def _value(self, tokens: Tokens, path: str) -> object:
        groups = tokens.group()
        if groups is not None and not len(groups[1]):
            return [self._value(entry, path) for entry in groups[0].split(TokenType.COMMA) if len(groups[0])]
        if len(tokens) == 1:
            text = str(tokens.tokens[0].text)
            match tokens.kind():
                case TokenType.STRING:
                    return text
                case TokenType.NUMBER:
                    return int(text) if text.isdigit() else float(text)
                case TokenType.TRUE | TokenType.FALSE:
                    return tokens.kind() is TokenType.TRUE
                case TokenType.NULL:
                    return None
        if len(tokens) == 2 and tokens.kind() is TokenType.DASH and tokens.kind(1) is TokenType.NUMBER:
            text = str(tokens.tokens[1].text)
            return -int(text) if text.isdigit() else -float(text)
        raise tokens.refuse(path, "is not a value", "write a text in quotes, a number, true, false, or a list: ('a', 'b')")

    # SELECT

    def _select(self, name: str, tokens: Tokens) -> str:
        """Make the operators of a SELECT, the last of them called `name`. The name of what it reads if it changes nothing."""
        path = f"operators.{name}"
        first, *others = tokens.split(TokenType.UNION)
        if others:
            for part in others:
                if part.kind() is not TokenType.ALL:
                    fix = "write UNION ALL; to leave repeated rows out, SELECT DISTINCT ON (...) from it in a view"
                    raise part[:1].refuse(path, "UNION would compare each row with all rows ever", fix)
            parts = [first, *(part[1:] for part in others)]
            read = [self._select(f"{name}_{number}", part) for number, part in enumerate(parts, 1)]
            return self._add(name, [_Step("all", "union", {}, {"": tokens}, read)], "")
        clauses = self._clauses(tokens, path)
        source, steps = self._source(clauses.get(TokenType.FROM, tokens[len(tokens) :]), path)
        if TokenType.WHERE in clauses:
            steps.append(_filter("where", clauses[TokenType.WHERE]))
        steps += self._rows(clauses, path)
        for step in steps:
            step.places.setdefault("", tokens)
        return self._add(name, steps, source) if steps else source

    def _add(self, name: str, steps: list[_Step], source: str) -> str:
        for position, step in enumerate(steps):
            called = name if position == len(steps) - 1 else f"{name}_{step.suffix}"
            self.operators[called] = {step.kind: step.inputs or source, **step.fields}
            for inner, tokens in step.places.items():
                self.places[f"operators.{called}.{inner}".rstrip(".")] = tokens
            source = called
        return source

    def _clauses(self, tokens: Tokens, path: str) -> dict[Any, Tokens]:
        starts = [index for index in tokens.outer() if tokens.kind(index) in _CLAUSES]
        found: dict[Any, Tokens] = {}
        last = -1
        for begin, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
            clause = tokens[begin:end]
            if clause.kind() in (TokenType.ORDER_BY, TokenType.LIMIT):
                fix = f"take the first of each window: {_TOP}"
                raise clause.refuse(path, "a stream has no end, after which its rows could be sorted or counted", fix)
            if _CLAUSES.index(clause.kind()) <= last:
                fix = "write SELECT, FROM, WHERE, GROUP BY, HAVING or QUALIFY once each, in this order"
                raise clause.refuse(path, "stands out of order", fix)
            if len(clause) == 1:
                raise clause.refuse(path, "has nothing after it", f"write it as in: {STATEMENTS['query']}")
            last = _CLAUSES.index(clause.kind())
            found[clause.kind()] = clause[1:]
        if not starts or starts[0] or TokenType.SELECT not in found:
            raise tokens.refuse(path, "is not a SELECT", f"write it as in: {STATEMENTS['view']}")
        return found

    # FROM

    def _source(self, tokens: Tokens, path: str) -> tuple[str, list[_Step]]:
        """(What is read, the join of it if there is one)."""
        if not len(tokens):
            raise tokens.refuse(path, "has no FROM", f"write it as in: {STATEMENTS['view']}")
        if tokens.name is not None:
            return tokens.name, []
        if tokens.kind() is TokenType.L_PAREN:
            raise tokens.refuse(path, "reads a SELECT in parentheses", "make that SELECT a view, and read the view")
        if tokens[:1].name is not None and tokens.kind(1) is TokenType.L_PAREN:
            return self._own(tokens, path)
        if tokens.find(TokenType.COMMA) < len(tokens):
            raise tokens.refuse(path, "joins without a window: each row would wait for ever", f"write {_JOIN}")
        join = tokens.find(TokenType.JOIN)
        if join == len(tokens):
            raise tokens.refuse(path, "is not the name of a stream or view", "write one name, without an alias, or a JOIN")
        words = [tokens.word(index) for index in range(1, join)]
        is_lookup = words[:1] == ["asof"]
        form = _LOOKUP if is_lookup else _JOIN
        how = {"": "inner", "inner": "inner", "left": "left", "left outer": "left"}.get(" ".join(words[is_lookup:]))
        on = tokens.find(TokenType.ON)
        left, right = tokens[:1].name, tokens[join + 1 : on].name
        if how is None:
            fix = "write JOIN, LEFT JOIN, ASOF JOIN or ASOF LEFT JOIN"
            raise tokens[1 : join + 1].refuse(path, "is not a join that streams have", fix)
        if left is None or right is None:
            raise tokens.refuse(path, "does not join two streams or views by their names", f"write {form}")
        places = {"": tokens, "on": tokens[on:]}
        if is_lookup:
            columns, rules = self._as_of(tokens[on + 1 :], left, right, path)
            return "", [_Step("joined", "lookup", {"on": columns, **rules, "how": how}, places, [left, right])]
        columns, within = self._condition(tokens[on + 1 :], left, right, path)
        return "", [_Step("joined", "join", {"on": columns, "within": within, "how": how}, places, [left, right])]

    def _own(self, tokens: Tokens, path: str) -> tuple[str, list[_Step]]:
        """An operator of an installed package: NAME(INPUT, parameter => value), perhaps with VERSION."""
        operator, groups = tokens[:1].name, tokens[1:].group()
        given, rest = groups if groups is not None else (tokens[2:], tokens[len(tokens) :])
        read, *arguments = given.split(TokenType.COMMA)
        if groups is None or read.name is None:
            raise tokens.refuse(path, "is no operator with its input", f"write {_OWN}")
        fields: dict[str, Any] = {"operator": operator}
        places = {"": tokens, "operator": tokens[:1], "python": read}
        if len(rest):
            if rest.word() != "version" or len(rest) != 2 or rest.kind(1) is not TokenType.STRING:
                raise rest.refuse(path, "does not belong after an operator of a package", f"write {_OWN}")
            fields["version"], places["version"] = str(rest.tokens[1].text), rest
        for argument in arguments:
            arrow = argument.find(TokenType.FARROW)
            keys = [part.name or "" for part in argument[:arrow].split(TokenType.DOT)]
            if not all(keys) or arrow == len(argument):
                raise argument.refuse(path, "is not a parameter and its value", f"write {_OWN}")
            inner = fields.setdefault("with", {})
            for key in keys[:-1]:
                inner = inner.setdefault(key, {})
            place = ".".join(("with", *keys))
            if not isinstance(inner, dict) or keys[-1] in inner:
                raise argument.refuse(f"{path}.{place}", "is written twice", "keep one of the two")
            inner[keys[-1]] = self._value(argument[arrow + 1 :], f"{path}.{place}")
            places[place] = argument
        return read.name, [_Step("made", "python", fields, places)]

    def _condition(self, tokens: Tokens, left: str, right: str, path: str) -> tuple[list[str], str]:
        """(The columns that are equal, the longest distance in time) of the condition of a join."""
        columns: list[str] = []
        within: list[str] = []
        parts = tokens.split(TokenType.AND)
        while parts:
            part = parts.pop(0)
            if column := self._equal(part, left, right, path):
                columns.append(column)
                continue
            bounds = part.split(TokenType.BETWEEN)
            if len(bounds) == 2 and parts:
                low, high = bounds[1].split(TokenType.DASH), parts.pop(0).split(TokenType.PLUS)
                times = [_time_of(bounds[0]), _time_of(low[0]), _time_of(high[0])]
                lengths = [self._duration(side[1], path) for side in (low, high) if len(side) == 2]
                if times in ([right, left, left], [left, right, right]) and len({*lengths}) == 1 and len(lengths) == 2:
                    within.append(lengths[0])
                    continue
            raise part.refuse(path, "is not a condition that a join of streams can have", f"write {_JOIN}")
        if len(within) != 1:
            raise tokens.refuse(path, "joins without a window: each row would wait for ever", f"write {_JOIN}")
        return columns, within[0]

    def _as_of(self, tokens: Tokens, left: str, right: str, path: str) -> tuple[list[str], dict[str, str]]:
        """(The columns that are equal, {within: the most that the right row may be older, deleted: the column that is true in
        rows that delete}) of the condition of a lookup."""
        columns: list[str] = []
        deleted: dict[str, str] = {}
        spans: list[dict[str, str]] = []
        parts = tokens.split(TokenType.AND)
        while parts:
            part = parts.pop(0)
            if column := self._equal(part, left, right, path):
                columns.append(column)
                continue
            if [_time_of(side) for side in part.split(TokenType.GTE)] == [left, right]:
                spans.append({})
                continue
            if part.kind() is TokenType.NOT and not deleted:
                place = [word.name for word in part[1:].split(TokenType.DOT)]
                if len(place) == 2 and place[0] == right and place[1]:
                    deleted["deleted"] = place[1]
                    continue
            bounds = part.split(TokenType.BETWEEN)
            high = parts.pop(0).split(TokenType.PLUS) if len(bounds) == 2 and parts else []
            if len(high) == 2 and [_time_of(each) for each in (*bounds, high[0])] == [left, right, right]:
                spans.append({"within": self._duration(high[1], path)})
                continue
            raise part.refuse(path, "is not a condition that a lookup can have", f"write {_LOOKUP}")
        if len(spans) != 1:
            raise tokens.refuse(path, "does not say once which rows of the table are old enough", f"write {_LOOKUP}")
        return columns, {**spans[0], **deleted}

    def _equal(self, part: Tokens, left: str, right: str, path: str) -> str | None:
        """The column that is equal in both inputs, if this is such a condition."""
        sides = [[word.name for word in side.split(TokenType.DOT)] for side in part.split(TokenType.EQ)]
        if len(sides) != 2 or sorted(map(str, (sides[0][0], sides[1][0]))) != sorted((left, right)):
            return None
        if len(sides[0]) == len(sides[1]) == 2 and sides[0][1] == sides[1][1] and sides[0][1]:
            return sides[0][1]
        raise part.refuse(path, "joins columns of different names", "rename one of them in a view before")

    # What becomes of the rows

    def _rows(self, clauses: Mapping[Any, Tokens], path: str) -> list[_Step]:
        selected, grouped = clauses[TokenType.SELECT], clauses.get(TokenType.GROUP_BY)
        having, qualified = clauses.get(TokenType.HAVING), clauses.get(TokenType.QUALIFY)
        if having is not None and grouped is None:
            raise having.refuse(path, "HAVING needs GROUP BY", "write WHERE, for conditions on rows")
        items = selected.split(TokenType.COMMA)
        if selected.kind() is TokenType.DISTINCT:
            steps = [self._distinct(selected, path)]
        elif len(items) == 2 and items[0].kind() is TokenType.STAR and items[1].word() == "row_number":
            steps, qualified = [self._top(items[1], qualified, path)], None
        elif grouped is not None:
            steps = [self._aggregate(items, grouped, path)]
        elif len(selected) == 1 and selected.kind() is TokenType.STAR:
            steps = []
        else:
            steps = [self._map(items, path)]
        if qualified is not None:
            raise qualified.refuse(path, "QUALIFY is for the first rows of windows", f"write {_TOP}")
        if grouped is not None and (not steps or steps[0].kind != "aggregate"):
            raise grouped.refuse(path, "GROUP BY needs aggregations", f"write it as in: {STATEMENTS['query']}")
        return [*steps, _filter("having", having)] if having is not None else steps

    def _map(self, items: list[Tokens], path: str) -> _Step:
        select: dict[str, str] = {}
        step = _Step("selected", "map", {"select": select})
        for item in items:
            name, expression = self._titled(item, path)
            self._once(select, name, item, path)
            select[name] = expression.source
            step.places[f"select.{name}"] = item
        return step

    def _aggregate(self, items: list[Tokens], grouped: Tokens, path: str) -> _Step:
        window, by = self._window(grouped, path, "GROUP BY")
        if window is None:
            fix = "group by a window of time as well: GROUP BY TUMBLE('10m'), or HOP('10m', '1h') for one of 1h every 10m"
            raise grouped.refuse(path, "groups a stream, which has no end, without a window", fix)
        compute: dict[str, str] = {}
        step = _Step("grouped", "aggregate", {"window": window, "by": by, "compute": compute}, {"window": grouped})
        shown = []
        for item in items:
            if item.name is not None:
                if item.name not in (*by, *_RIDING_ALONG):
                    raise item.refuse(path, "is neither in GROUP BY nor an aggregation", f"add {item.source} to GROUP BY")
                shown.append(item.name)
                continue
            name, expression = self._titled(item, path)
            self._once(compute, name, item, path)
            compute[name] = expression.source
            step.places[f"compute.{name}"] = item
        for column in by:
            if column not in shown:
                fix = f"select {column} too; a view that reads this one can leave it out"
                raise grouped.refuse(path, f"groups by {column}, which is not selected", fix)
        if not compute:
            raise items[0].refuse(path, "computes nothing of its groups", "add an aggregation, such as count(*) AS n")
        return step

    def _distinct(self, selected: Tokens, path: str) -> _Step:
        groups = selected[2:].group() if selected.kind(1) is TokenType.ON else None
        if groups is None or groups[1].source != "*":
            fix = "write SELECT DISTINCT ON (TUMBLE('1h'), order_id) * FROM ...: the first row of each"
            raise selected.refuse(path, "DISTINCT needs the columns to compare", fix)
        window, on = self._window(groups[0], path, "DISTINCT ON")
        if window and "within" in window:
            return _Step("distinct", "deduplicate", {"on": on, **window}, {"on": groups[0], "within": groups[0]})
        fields = {"on": on, **({"window": window} if window else {})}
        return _Step("distinct", "distinct", fields, {"on": groups[0], "window": groups[0]})

    def _top(self, item: Tokens, qualified: Tokens | None, path: str) -> _Step:
        over = item.find(TokenType.OVER)
        groups = item[over + 1 :].group()
        if groups is None or not len(groups[0]) or groups[1].source.lower() != "as rank":
            raise item.refuse(path, "does not number the rows of a window", f"write {_TOP}")
        order = groups[0].find(TokenType.ORDER_BY)
        if groups[0].kind() is not TokenType.PARTITION_BY or order == len(groups[0]):
            raise groups[0].refuse(path, "does not say the window and the order", f"write {_TOP}")
        window, by = self._window(groups[0][1:order], path, "PARTITION BY")
        if window is None:
            raise groups[0].refuse(path, "would sort a stream, which has no end", f"write {_TOP}")
        limit = re.fullmatch(r"rank\s*<=\s*(\d{1,18})", qualified.source if qualified else "", re.IGNORECASE)
        if limit is None:
            raise (qualified or item).refuse(path, "does not say how many rows to keep", "add QUALIFY rank <= 5")
        ordering = groups[0][order + 1 :]
        fields = {"k": int(limit[1]), "order_by": ordering.source, "window": window, "by": by}
        return _Step("ranked", "top", fields, {"order_by": ordering, "window": groups[0]})

    def _titled(self, item: Tokens, path: str) -> tuple[str, Tokens]:
        """(The name of a column, its expression)."""
        if item.name is not None:
            return item.name, item
        name = item[-1:].name
        if len(item) > 2 and item.kind(-2) is TokenType.ALIAS and name is not None:
            return name, item[:-2]
        raise item.refuse(path, "has no name", f"write {item.source or 'dep_delay / 60'} AS NAME")

    def _once(self, columns: Mapping[str, str], name: str, item: Tokens, path: str) -> None:
        if name in columns:
            raise item.refuse(path, f"there are two columns {name}", "rename one of them")

    def _window(self, tokens: Tokens, path: str, clause: str) -> tuple[dict[str, str] | None, list[str]]:
        """(The window, the columns) of a list that may have both; {within: SPAN} for a WITHIN of DISTINCT ON."""
        window: dict[str, str] | None = None
        columns: list[str] = []
        for item in tokens.split(TokenType.COMMA):
            groups = item[1:].group()
            lengths = groups[0].split(TokenType.COMMA) if groups and not len(groups[1]) else []
            if item.word() == "tumble" and len(lengths) == 1 and window is None:
                window = {"tumbling": self._duration(lengths[0], path)}
            elif item.word() == "hop" and len(lengths) == 2 and window is None:
                every, size = (self._duration(length, path) for length in lengths)
                window = {"sliding": size, "every": every}
            elif item.word() == "session" and len(lengths) in (1, 2) and window is None:
                fields = ("session", "longest")
                window = {name: self._duration(length, path) for name, length in zip(fields, lengths, strict=False)}
            elif item.word() == "within" and clause == "DISTINCT ON" and len(lengths) == 1 and window is None:
                window = {"within": self._duration(lengths[0], path)}
            elif item.name is not None and item.name not in columns:
                columns.append(item.name)
            else:
                fix = "write columns, and TUMBLE('10m'), HOP('10m', '1h') or SESSION('30m') once; compute others in a view"
                raise item.refuse(path, f"is not a column or a window of {clause}", fix)
        return window, columns

    def _duration(self, tokens: Tokens, path: str) -> str:
        """The text of '10m', INTERVAL '10m', or INTERVAL '10' MINUTE."""
        inner = tokens[1:] if tokens.kind() is TokenType.INTERVAL else tokens
        if inner.kind() is TokenType.STRING and len(inner) in (1, 2):
            number, _, unit = f"{inner.tokens[0].text} {inner.word(1)}".strip().partition(" ")
            suffix = _UNITS.get(unit.strip().lower().removesuffix("s")) if unit else ""
            if suffix is not None:
                return number + suffix
        raise tokens.refuse(path, "is not a duration", "write '10m', or INTERVAL '10' MINUTE")


def _filter(suffix: str, condition: Tokens) -> _Step:
    return _Step(suffix, "filter", {"where": condition.source}, {"where": condition})


def _time_of(tokens: Tokens) -> str | None:
    """The name of the input whose time this is."""
    parts = [part.name for part in tokens.split(TokenType.DOT)]
    return parts[0] if len(parts) == 2 and parts[1] == "time" else None
