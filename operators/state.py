"""The parts of operators' states, each with layers.

`overlay()` creates a child that reads through to its parent, and copies what it changes. It takes no longer for a large state
than for a small one. `absorb(child)` takes over the child's changes. While a child exists, its parent must not change. After
`absorb`, the child must not be used.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, Self, TypeVar

import pyarrow as pa

from boreal.model.errors import CorruptError
from boreal.model.frames import INFINITY
from operators.encoding import pack, unpack

NEVER = 1 << 63
"""Later than every boundary, including INFINITY."""


class Stateless:
    """The state of an operator without state."""

    def overlay(self) -> Stateless:
        return self

    def absorb(self, child: Stateless) -> None:
        pass

    def encode(self) -> bytes:
        return b""

    def nbytes(self) -> int:
        return 0

    @staticmethod
    def decode(blob: bytes) -> Stateless:
        if blob:
            raise CorruptError("a state was found for an operator without state")
        return NOTHING


NOTHING = Stateless()
"""The only `Stateless`."""


class KeySet:
    """A set of keys in order of insertion, with layers."""

    __slots__ = ("own", "parent")

    def __init__(self, keys: Iterator[Hashable] | tuple[Hashable, ...] = (), parent: KeySet | None = None) -> None:
        self.own = dict.fromkeys(keys)
        self.parent = parent

    def __contains__(self, key: Hashable) -> bool:
        return key in self.own or (self.parent is not None and key in self.parent)

    def __len__(self) -> int:
        return len(self.own) + (0 if self.parent is None else len(self.parent))

    def __iter__(self) -> Iterator[Hashable]:
        if self.parent is not None:
            yield from self.parent
        yield from self.own

    def add(self, key: Hashable) -> bool:
        """Add a key; returns whether it is new."""
        if key in self:
            return False
        self.own[key] = None
        return True

    def overlay(self) -> KeySet:
        return KeySet(parent=self)

    def absorb(self, child: KeySet) -> None:
        self.own.update(child.own)

    def nbytes(self) -> int:
        return 64 + 128 * len(self.own)


class Pane(Protocol):
    """What an operator accumulates for one span of time; it has layers."""

    def overlay(self) -> Self: ...

    def absorb(self, child: Self) -> None: ...

    def nbytes(self) -> int: ...


P = TypeVar("P", bound=Pane)


class Panes(Generic[P]):
    """Panes by number, with layers.

    upto: of the last step. next_close: when the next window with rows closes. own: numbers of the panes that this layer may
    change. A pane of the parent gets an overlay on its first change; dropping a pane changes this layer only. kind: identifies
    the state for `decode`. write: encodes a pane.
    """

    __slots__ = ("kind", "next_close", "own", "panes", "upto", "write")

    def __init__(self, kind: str, write: Callable[[P], bytes]) -> None:
        self.kind = kind
        self.write = write
        self.panes: dict[int, P] = {}
        self.own: set[int] = set()
        self.upto = -INFINITY
        self.next_close = NEVER

    def change(self, number: int, make: Callable[[], P]) -> P:
        """The pane, for modification; created by `make` if it does not exist."""
        if number in self.panes:
            return self._changed(number)
        self.own.add(number)
        return self.panes.setdefault(number, make())

    def _changed(self, number: int) -> P:
        if number not in self.own:
            self.panes[number] = self.panes[number].overlay()
            self.own.add(number)
        return self.panes[number]

    def drop(self, number: int) -> None:
        del self.panes[number]
        self.own.discard(number)

    def overlay(self) -> Panes[P]:
        child = Panes(self.kind, self.write)
        child.panes = dict(self.panes)
        child.upto, child.next_close = self.upto, self.next_close
        return child

    def absorb(self, child: Panes[P]) -> None:
        for number in [number for number in self.panes if number not in child.panes]:
            self.drop(number)
        for number in sorted(child.own):
            if number in self.panes:
                self._changed(number).absorb(child.panes[number])
            else:
                self.panes[number] = child.panes[number]
                self.own.add(number)
        self.upto, self.next_close = child.upto, child.next_close

    def encode(self) -> bytes:
        numbers = sorted(self.panes)
        facts: dict[str, object] = {"panes": numbers, "upto": self.upto}
        return pack(self.kind, facts, [self.write(self.panes[number]) for number in numbers])

    def decode(self, blob: bytes, read: Callable[[bytes], P]) -> Panes[P]:
        """Fill this empty state from encoded bytes; the caller restores `next_close`. CorruptError as `unpack`."""
        facts, parts = unpack(blob, self.kind)
        numbers = facts["panes"]
        assert isinstance(numbers, list) and isinstance(facts["upto"], int)
        self.panes = dict(zip(numbers, map(read, parts), strict=True))
        self.own = set(numbers)
        self.upto = facts["upto"]
        return self

    def nbytes(self) -> int:
        return sum(self.panes[number].nbytes() for number in self.own)


def append_chunk(chunks: tuple[pa.RecordBatch, ...], batch: pa.RecordBatch) -> tuple[pa.RecordBatch, ...]:
    """The chunks with one more; neighbours of similar size are merged. So there are few chunks, and rows are rarely copied."""
    keep = len(chunks)
    while keep and chunks[keep - 1].num_rows < 2 * batch.num_rows:
        keep -= 1
        batch = pa.concat_batches([chunks[keep], batch])
    return (*chunks[:keep], batch)
