"""What `mkdocs.yml` asks of MkDocs beyond pages: files are where they are in the repository, so that one link serves both.

The site has README.md, the pages of docs/, and every file of the repository that one of its pages links to.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)")
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"']?(https?:[^\s\"'>]+)")


def linked() -> list[Path]:
    """README.md, docs/, and all that they link to in the repository, directly or by another page."""
    pending = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
    found: list[Path] = []
    while pending:
        path = pending.pop(0)
        if path in found or not path.is_file() or not path.is_relative_to(ROOT):
            continue
        found.append(path)
        if path.suffix == ".md":
            pending.extend((path.parent / target).resolve() for target in LINK.findall(path.read_text(encoding="utf-8")))
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs with the files of docs/ and of the theme."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    pages = [File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)) for path in linked()]
    return Files([*theme, *pages])


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Called with the HTML of each page, which may load nothing from elsewhere."""
    if loaded := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads {loaded[1]}")
    return output
