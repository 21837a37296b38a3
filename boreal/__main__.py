"""`python -m boreal`: the command line."""

import sys

from boreal.cli import main

sys.exit(main())
