"""The command line. `main` is the console script `boreal`; what commands do is elsewhere, and imported when one runs."""

from boreal.cli.app import main

__all__ = ["main"]
