"""Bearer tokens and their roles. A token is 256 random bits; only its SHA-256 is kept, in DATA/tokens.json.

The token that `boreal up` makes is in DATA/token, which only its owner may read: commands and notebooks find it there.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from boreal.model.errors import UserError

VERSION = 1


class Role(Enum):
    """What a caller may do."""

    VIEWER = "viewer"
    """Read everything but the settings."""
    OPERATOR = "operator"
    """Also create and change queries, post rows, and start, cancel and delete comparisons."""
    ADMIN = "admin"
    """Also delete queries, and read the settings."""
    CHAOS = "chaos"
    """Break something on purpose, where the installation allows it; nothing else."""


_ALSO = {
    Role.VIEWER: {Role.VIEWER},
    Role.OPERATOR: {Role.OPERATOR, Role.VIEWER},
    Role.ADMIN: {Role.ADMIN, Role.OPERATOR, Role.VIEWER},
    Role.CHAOS: {Role.CHAOS},
}
"""The roles that a role includes."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls."""

    id: str
    """The id of the token; `up` and `settings` for those that have none."""
    name: str
    """The name of the token."""
    roles: frozenset[Role]
    """What it was given."""

    def may(self, role: Role) -> bool:
        return any(role in _ALSO[own] for own in self.roles)

    def __str__(self) -> str:
        """Who it is, as events say."""
        return f"{self.name} ({', '.join(sorted(role.value for role in self.roles))})"


@dataclass(frozen=True, slots=True)
class Token:
    """What is kept of a token."""

    id: str
    """Its public name in `boreal token list`."""
    name: str
    """What it is for, as its maker wrote it."""
    roles: tuple[str, ...]
    """Values of `Role`."""
    sha256: str = field(repr=False)
    """The hash, in hex."""
    created_ms: float
    """When it was made, in milliseconds since the Unix epoch."""
    expires_ms: float | None = None
    """When it ceases to be valid; None: never."""


class TokenStore:
    """The tokens in a directory, and one that the settings name. Another process may change them at any time."""

    def __init__(self, data: Path, given: str | None = None, now: Callable[[], float] = time.time) -> None:
        """given: a token with the roles admin and chaos. now: seconds since the Unix epoch."""
        self._path = data / "tokens.json"
        self._up = data / "token"
        self._given = given
        self._now = now
        self._read: tuple[tuple[int, int] | None, list[Token]] = (None, [])
        self.on_change: Callable[[], None] = lambda: None
        """Called when the tokens have changed, in the thread that asks next."""

    def create(self, name: str, roles: list[Role], for_s: float | None = None) -> tuple[Token, str]:
        """A new token, and its text, which is kept nowhere. for_s: how long it is valid, in seconds."""
        if not roles:
            raise UserError("--role", None, "is missing", f"choose from {', '.join(role.value for role in Role)}")
        text, now = secrets.token_urlsafe(32), self._now()
        expires_ms = None if for_s is None else (now + for_s) * 1_000
        token = Token(secrets.token_hex(4), name, tuple(role.value for role in roles), _hash(text), now * 1_000, expires_ms)
        with self._changing() as tokens:
            tokens.append(token)
        return token, text

    def revoke(self, id_or_name: str) -> list[Token]:
        """Revoke the token with this id, or all with this name; returns them. UserError if there is none."""
        with self._changing() as tokens:
            revoked = [token for token in tokens if id_or_name in (token.id, token.name)]
            if not revoked:
                known = ", ".join(token.id for token in tokens)
                fix = f"name one of {known}" if known else "there are none; boreal token create makes one"
                raise UserError("TOKEN", id_or_name, "there is no such token", fix)
            tokens[:] = [token for token in tokens if token not in revoked]
        return revoked

    def tokens(self) -> list[Token]:
        """All that were created and not revoked, expired ones too."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return []
        version = status.st_mtime_ns, status.st_ino
        if self._read[0] != version:
            self._read = version, self._load()
            self.on_change()
        return list(self._read[1])

    def shown(self) -> list[dict[str, Any]]:
        """What a status says of the tokens: nothing from which one could be made."""
        return [
            {"id": token.id, "name": token.name, "roles": list(token.roles), "created_ms": token.created_ms}
            for token in self.tokens()
        ]

    def caller(self, text: str) -> Caller | None:
        """Who has this token; None if it is unknown, revoked or expired. All tokens are compared, in constant time."""
        said = _hash(text)
        found: Caller | None = None
        for known, name, sha256, roles in self._valid():
            if hmac.compare_digest(said, sha256):
                found = Caller(known, name, frozenset(roles))
        return found

    def _valid(self) -> Iterator[tuple[str, str, str, list[Role]]]:
        everything = [Role.ADMIN, Role.CHAOS]
        if self._given:
            yield "settings", "settings", _hash(self._given), everything
        if self._up.is_file():
            yield "up", "up", _hash(self._up.read_text().strip()), everything
        for token in self.tokens():
            if token.expires_ms is None or token.expires_ms > self._now() * 1_000:
                yield token.id, token.name, token.sha256, [Role(role) for role in token.roles]

    def _load(self) -> list[Token]:
        try:
            kept: dict[str, Any] = json.loads(self._path.read_text())
            return [Token(**{**token, "roles": tuple(token["roles"])}) for token in kept["tokens"]]
        except (ValueError, KeyError, TypeError):
            fix = "remove it, and create the tokens again"
            raise UserError("DATA/tokens.json", str(self._path), "is damaged", fix) from None

    @contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        """The tokens, to be changed: replaced atomically, by one process at a time."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = self._load() if self._path.is_file() else []
            yield tokens
            written = self._path.with_suffix(f".{os.getpid()}")
            written.touch(mode=0o600)
            written.write_text(json.dumps({"v": VERSION, "tokens": [asdict(token) for token in tokens]}, indent=1))
            written.replace(self._path)


def _hash(text: str) -> str:
    """A fast hash is enough for 256 random bits: nobody can guess them."""
    return hashlib.sha256(text.encode()).hexdigest()
