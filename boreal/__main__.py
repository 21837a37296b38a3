"""`python -m boreal`: the command line, with boreal's own packages whatever the current directory holds.

`python -m` puts the current directory first on the path. A user's folder with a common name, such as services/, would then
stand before ours. So that place goes, unless boreal itself is there, as in a checkout.
"""

import sys
from pathlib import Path

if not sys.flags.safe_path and Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[1]:
    del sys.path[0]

from boreal_cli import main

sys.exit(main())
