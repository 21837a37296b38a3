"""`python -m tests.scenarios.rewrite`: write the traces of all scenarios again, and what docs/scenarios.md shows of them.

The difference is what a change has done to the protocol's behaviour: read it before it is committed.
"""

from tests.scenarios.story import PAGE, files, illustrated, played

if __name__ == "__main__":
    for path in files():
        path.write_text(played(path.read_text(encoding="utf-8")), encoding="utf-8")
    PAGE.write_text(illustrated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
