"""What an expression may hold, by example: the reference is made of these tables, and refusals name what is in them."""

from __future__ import annotations

OPERATORS = {
    "x + y": "Sum; of a date and an int, the date so many days later.",
    "x - y": "Difference; of two dates, the days between them, and of a date and an int, the date so many days earlier.",
    "x * y": "Product.",
    "x / y": "Quotient, always a double.",
    "x % y": "Remainder, with the sign of x; also `mod(x, y)`.",
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
    "cast": ("cast(x as string)", "The value as another type: string, int, double, bool, timestamp, date or `decimal(p, s)`. "
        "A date of a time is that in UTC, or in a time zone: `cast(time at time zone 'Europe/Berlin' as date)`."),
    "ceil": ("ceil(x)", "The smallest whole number that is not less."),
    "coalesce": ("coalesce(x, y)", "The first argument that is not null."),
    "concat": ("concat(s, t)", "The texts one after the other; null where one is null."),
    "date_trunc": (
        "date_trunc('day', time, 'Europe/Berlin')",
        "The time at which this second, minute, hour, day, week (from Monday), month, quarter or year began; in UTC, or in the "
        "time zone named. Of a time that a zone has twice, the earlier.",
    ),
    "exp": ("exp(x)", "e to the power of x."),
    "extract": (
        "extract(hour from time at time zone 'Europe/Berlin')",
        "A part of a time, in UTC or in a time zone: year, quarter, month, week (of ISO 8601), day, dow (Sunday is 0), isodow "
        "(Monday is 1), doy, hour, minute or second, as an int without fraction; or epoch, a double: the seconds since 1970.",
    ),
    "floor": ("floor(x)", "The largest whole number that is not greater."),
    "greatest": ("greatest(x, y)", "The largest argument; nulls are left out."),
    "least": ("least(x, y)", "The smallest argument; nulls are left out."),
    "length": ("length(s)", "The number of characters."),
    "ln": ("ln(x)", "The natural logarithm."),
    "log": ("log(2, x)", "The logarithm to this base; `log(x)` is to the base 10."),
    "lower": ("lower(s)", "The text in lower case."),
    "ltrim": ("ltrim(s)", "As `trim`, at the beginning only."),
    "nullif": ("nullif(x, y)", "x, or null where it equals y."),
    "position": ("position('-' in s)", "Where the text first holds this one, counted in characters from 1; 0 if it does not."),
    "power": ("power(x, y)", "x to the power of y."),
    "regexp_extract": (
        "regexp_extract(s, '([A-Z]+)-', 1)",
        "The first part of the text that matches the pattern, or of it the group of this number; null if nothing matches.",
    ),
    "regexp_like": ("regexp_like(s, '^[A-Z]+-')", "As `regexp_matches`."),
    "regexp_matches": (
        "regexp_matches(s, '^[A-Z]+-')",
        "Whether a part of the text matches the pattern, in the syntax of RE2.",
    ),
    "regexp_replace": (
        "regexp_replace(s, '[0-9]+', '#', 'g')",
        "The text with the first match of the pattern replaced, or with `'g'` every match; `\\1` is the first group.",
    ),
    "replace": ("replace(s, '-', '')", "The text with each occurrence of the second text replaced by the third."),
    "round": ("round(x, 2)", "x rounded to so many digits after the point, by default to none."),
    "rtrim": ("rtrim(s)", "As `trim`, at the end only."),
    "sign": ("sign(x)", "-1, 0 or 1, an int."),
    "split_part": (
        "split_part(s, '-', 1)",
        "The text divided at each occurrence of the second text: the part of this number, from 1, or from -1 at the end; empty "
        "if there is none.",
    ),
    "sqrt": ("sqrt(x)", "The square root."),
    "substring": ("substring(s, 1, 2)", "The part of the text from this character on, counted from 1, and of this length."),
    "to_timestamp": (
        "to_timestamp(s, '%d.%m.%Y %H:%M')",
        "The time that the text says in this format of `strptime`, in UTC unless it has a zone (`%z`); null for another text. "
        "Of a number, `to_timestamp(x)`: so many seconds after 1970.",
    ),
    "trim": ("trim(s)", "The text without spaces at both ends; `trim(s, 'xy')` is without these characters."),
    "upper": ("upper(s)", "The text in upper case."),
}
"""The functions that an expression may call, each with an example."""

AGGREGATIONS = {
    "count(*)": "The number of rows.",
    "count(x)": "The number of rows where x is not null.",
    "count_if(p)": "The number of rows for which the condition is true.",
    "count(distinct x)": "The number of different values that are not null.",
    "approx_count_distinct(x)": "An estimate of that, from state of a bounded size; also `approx_distinct(x)`. Its standard "
    "error is 1.6 %.",
    "approx_quantile(x, 0.95)": "An estimate of the least value that this share of the values do not exceed, also from state "
    "of a bounded size. Its magnitude is at most 0.4 % below the exact one's; whole numbers up to 512 are exact.",
    "sum(x)": "The sum of numbers.",
    "avg(x)": "The mean of numbers; also `mean(x)`.",
    "min(x)": "The smallest value.",
    "max(x)": "The largest value.",
    "stddev(x)": "The standard deviation of a sample; null for fewer than two values.",
    "stddev_pop(x)": "The standard deviation of the whole.",
    "first(x)": "The first value that is not null, by time and then by arrival.",
    "last(x)": "The last value that is not null, by time and then by arrival.",
    "sum(x) filter (where p)": "Any of these, over the rows for which the condition is true.",
}
"""What an aggregate may compute, x being any expression."""
