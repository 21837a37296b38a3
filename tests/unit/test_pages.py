"""What the pages point to is there: files, headings, and the modules that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOBS = ("*.md", "docs/*.md", "examples/*/*.md")
PAGES = sorted(path.relative_to(ROOT).as_posix() for glob in GLOBS for path in ROOT.glob(glob))


def anchors(path: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str):
    path = ROOT / page
    found = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", path.read_text(encoding="utf-8"))
    for target, anchor in found:
        there = (path.parent / target).resolve() if target else path
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_modules_are_there(page: str):
    named = re.findall(r"`([a-z_]+/(?:[a-z_]+/)*[a-z_]+\.py)`", (ROOT / page).read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).is_file()] == []
