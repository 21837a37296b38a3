"""Operators that users write: the classes that an installed package derives its operators from, and which are installed.

Pure, but for the metadata of installed packages and the imports of those that a query names; imports boreal.model only.
"""

from __future__ import annotations

from boreal.model.schema import Schema
from boreal.operators.classes import KeyedOperator, Operator, RowOperator, WindowOperator
from boreal.operators.state import Keyed, KeyState

__all__ = ["KeyState", "Keyed", "KeyedOperator", "Operator", "RowOperator", "Schema", "WindowOperator"]
