"""An attribute that is worked out when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class lazy(Generic[Value]):
    """As `functools.cached_property`, whose lock all objects of a class share in Python 3.11: threads with an object each wait
    for each other there. Of threads that share an object, each may work the value out."""

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> lazy[Value]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...
    def __get__(self, owner: object | None, kind: type) -> lazy[Value] | Value:
        if owner is None:
            return self
        value = self._value(owner)
        owner.__dict__[self._name] = value  # found there from now on
        return value

    def _value(self, owner: Any) -> Value:
        return self._make(owner)


class lazy_once(lazy[Value]):
    """As `lazy`, for objects that threads share: the first of them works the value out, and the others wait for it. Its object
    has a reentrant lock for that, named `making`."""

    def _value(self, owner: Any) -> Value:
        with owner.making:
            known: dict[str, Value] = owner.__dict__
            if self._name not in known:
                known[self._name] = self._make(owner)
            return known[self._name]
