"""The command line, on top of all other rooms; a command imports them when it runs. `main` is the console script `boreal`.

Touches the terminal; the rest through the other rooms.
"""

from boreal_cli.app import main

__all__ = ["main"]
