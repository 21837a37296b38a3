"""The current view of a corrected stream: the latest row of each key, stable or tentative."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from boreal.client.changes import Change, Stable, Tentative, Undo

T = TypeVar("T")


class View(Mapping[Any, Stable[T] | Tentative[T]], Generic[T]):
    """A mapping from keys to rows. A key is a value, a tuple of values for several key columns, or None without key columns.

    The view changes with the stream; `dict(view)` is a copy of its present contents. change: the last change applied.
    """

    def __init__(self) -> None:
        self.change: Change[T] | None = None
        self._stable: dict[Any, Stable[T]] = {}
        self._tentative: dict[Any, Tentative[T]] = {}

    @property
    def is_tentative(self) -> bool:
        """Whether the view has rows that an Undo may still revoke."""
        return bool(self._tentative)

    def take(self, change: Change[T]) -> bool:
        """Apply a change. Returns False if it changes no row."""
        match change:
            case Stable():
                self._stable[_hashable(change.key)] = change
            case Tentative():
                self._tentative[_hashable(change.key)] = change
            case Undo():
                self._tentative.clear()
            case _:
                return False
        self.change = change
        return True

    def forget_tentative(self) -> None:
        """Return to the stable rows, as a new iteration does."""
        self._tentative.clear()

    def __getitem__(self, key: Any) -> Stable[T] | Tentative[T]:
        return self._tentative[key] if key in self._tentative else self._stable[key]

    def __iter__(self) -> Iterator[Any]:
        yield from self._stable
        yield from (key for key in self._tentative if key not in self._stable)

    def __len__(self) -> int:
        return len(self._stable.keys() | self._tentative.keys())


def _hashable(key: Any) -> Any:
    return tuple(key.values()) if isinstance(key, dict) else key
