"""Imported before all else by the processes that a client waits for when they have been killed: what they import is most of
their start.

pyarrow imports pandas, where that is installed, as soon as it is given a list or a number, to see whether it is one of
pandas' own: a quarter of all that such a process imports, for nothing. And Python looks for garbage, again and again, through
what is there to stay; `services.hosting.process.run_process` has it do so again.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _PandasBlocker(MetaPathFinder):
    """As if pandas were not installed, which pyarrow does well without."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this process needs no pandas", name=fullname)
        return None


gc.disable()
sys.meta_path.insert(0, _PandasBlocker())
