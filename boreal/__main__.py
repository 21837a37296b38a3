"""`python -m boreal`: the command line."""

import sys

from boreal_cli import main

sys.exit(main())
