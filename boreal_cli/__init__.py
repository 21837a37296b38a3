"""The command line, on top of all other rooms. `main` is the console script `boreal`.

The code of a command is in other rooms, and is imported when the command runs.
"""

from boreal_cli.app import main

__all__ = ["main"]
