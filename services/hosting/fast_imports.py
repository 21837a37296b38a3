"""Makes a process start faster. It must be the first import of every process that users wait for, at a restart or in
`boreal up`: imports take most of the start.

If pandas is installed, pyarrow imports it when it first converts a list or a number, to check for pandas types: a quarter of
all that such a process imports, and never needed here. The garbage collector is off during the imports, because imported
objects stay for good; `services.hosting.process.run_process` turns it on again.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _PandasBlocker(MetaPathFinder):
    """Hides pandas, as if it were not installed. pyarrow works without it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this process needs no pandas", name=fullname)
        return None


gc.disable()
sys.meta_path.insert(0, _PandasBlocker())
