"""SQL text as tokens that know where they stand, and names and texts as SQL writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sqlglot
from sqlglot import Token, TokenType
from sqlglot.errors import SqlglotError

from boreal.model.errors import UserError

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OPEN, _CLOSE = (TokenType.L_PAREN, TokenType.L_BRACKET), (TokenType.R_PAREN, TokenType.R_BRACKET)


@dataclass(frozen=True)
class Tokens:
    """Some successive tokens of a text."""

    text: str
    """The whole text."""
    tokens: tuple[Token, ...]
    """The tokens, in order."""
    after: int = 0
    """Where the next token would begin, for what is missing."""

    @staticmethod
    def of(text: str) -> Tokens:
        """The tokens of a text. UserError if there is something that is none, such as a quote without its end."""
        try:
            return Tokens(text, tuple(sqlglot.tokenize(text)), len(text))
        except SqlglotError as error:
            fix = "end each text with ', each name in quotes with \" and each comment with */"
            raise UserError("query", None, f"is not SQL: {str(error).splitlines()[0]}", fix) from None

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, part: slice) -> Tokens:
        _, stop, _ = part.indices(len(self.tokens))
        after = self.tokens[stop].start if stop < len(self.tokens) else self.after
        return Tokens(self.text, self.tokens[part], after)

    @property
    def source(self) -> str:
        """The text from the first token to the last, as it was written."""
        return self.text[self.tokens[0].start : self.tokens[-1].end + 1] if self.tokens else ""

    @property
    def place(self) -> str:
        """Where the first token stands."""
        start = self.tokens[0].start if self.tokens else min(self.after, len(self.text.rstrip()))
        line, column = self.text.count("\n", 0, start) + 1, start - self.text.rfind("\n", 0, start)
        return f"line {line}, column {column}"

    def refuse(self, field: str, problem: str, fix: str) -> UserError:
        """A refusal of these tokens."""
        return UserError(field, self.source or None, f"{problem} ({self.place})", fix)

    def kind(self, index: int = 0) -> Any:
        """The kind of a token; None where there is none."""
        return self.tokens[index].token_type if -len(self.tokens) <= index < len(self.tokens) else None

    def word(self, index: int = 0) -> str:
        """A token in lower case, for words that have no kind of their own; "" where there is none, or a name in quotes."""
        if self.kind(index) in (None, TokenType.IDENTIFIER, TokenType.STRING):
            return ""
        return str(self.tokens[index].text).lower()

    @property
    def name(self) -> str | None:
        """The name, if the tokens are one."""
        if len(self.tokens) != 1:
            return None
        token = self.tokens[0]
        if token.token_type is TokenType.IDENTIFIER or (
            token.token_type is not TokenType.STRING and _WORD.fullmatch(token.text)
        ):
            return str(token.text)
        return None

    def outer(self) -> Iterator[int]:
        """The indices of the tokens that are in no parentheses."""
        depth = 0
        for index, token in enumerate(self.tokens):
            depth -= token.token_type in _CLOSE
            if depth == 0:
                yield index
            depth += token.token_type in _OPEN

    def find(self, kind: TokenType) -> int:
        """The index of the first token of this kind that is in no parentheses; the number of tokens if there is none."""
        return next((index for index in self.outer() if self.kind(index) is kind), len(self))

    def split(self, kind: TokenType) -> list[Tokens]:
        """What stands between the tokens of this kind that are in no parentheses."""
        cuts = [-1, *(index for index in self.outer() if self.kind(index) is kind), len(self)]
        return [self[begin + 1 : end] for begin, end in pairwise(cuts)]

    def group(self) -> tuple[Tokens, Tokens] | None:
        """(What stands in the parentheses that begin here, what follows them); None if none begin here, or do not end."""
        if self.kind() is not TokenType.L_PAREN:
            return None
        end = next((index for index in self.outer() if index), None)
        return None if end is None else (self[1:end], self[end + 1 :])


def name_text(name: str) -> str:
    """A name as SQL writes it: in quotes where it is no plain word, or a word that SQL has a use for."""
    if _WORD.fullmatch(name) and Tokens.of(name).kind() is TokenType.VAR:
        return name
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """A text in quotes."""
    return "'" + text.replace("'", "''") + "'"


def expression_text(sql: str) -> str:
    """An expression without what surrounds it: spaces, comments, a semicolon at its end."""
    tokens = Tokens.of(sql)
    while tokens.kind(-1) is TokenType.SEMICOLON:
        tokens = tokens[:-1]
    return tokens.source
