"""The dashboard's files: complete, small, without the network, and the vendored ones as `make vendor` made them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

STATIC = Path(__file__).resolve().parents[3] / "api" / "static"
SUFFIXES = (".js", ".css", ".html")
OWN = [path for path in sorted(STATIC.iterdir()) if path.suffix in SUFFIXES and not path.name.startswith("vendor")]
BYTES_MAX = 300_000


def test_vendored_files_are_as_they_were_made() -> None:
    lines = (STATIC / "vendor.sha256").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["vendor.js", "vendor.css", "vendor-licences.txt"]
    for line in lines:
        digest, name = line.split()
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest, f"{name}: run make vendor"


def test_each_vendored_package_has_its_licence() -> None:
    licences = (STATIC / "vendor-licences.txt").read_text()
    for package in ("preact", "@preact/signals", "@preact/signals-core", "htm", "uplot"):
        assert re.search(rf"^{re.escape(package)} \d+\.\d+\.\d+$", licences, re.MULTILINE), package
    assert licences.count("MIT License") >= 4 and "Apache License" in licences


def test_all_files_together_are_small() -> None:
    assert sum(path.stat().st_size for path in STATIC.iterdir()) < BYTES_MAX


def test_modules_import_only_names_that_exist_here() -> None:
    for path in OWN:
        for names, module in re.findall(r"^import \{([^}]*)\} from \"([^\"]+)\";", path.read_text(), re.MULTILINE):
            source = STATIC / module
            assert source.is_file(), f"{path.name} imports {module}"
            if not module.startswith("./vendor"):
                for name in (each.strip().split(" as ")[0] for each in names.split(",")):
                    exported = rf"^export (async )?(function|const|class|let) {name}\b"
                    assert re.search(exported, source.read_text(), re.MULTILINE), f"{module} has no {name}"


def test_nothing_is_fetched_from_elsewhere_and_no_text_becomes_markup() -> None:
    for path in OWN:
        text = path.read_text()
        assert not re.search(r"https?://(?!www\.w3\.org)", text), path.name
        for unsafe in ("innerHTML", "insertAdjacentHTML", "eval(", "new Function", "document.write", "localStorage"):
            assert unsafe not in text, f"{path.name} has {unsafe}"
    page = (STATIC / "index.html").read_text()
    assert "<style" not in page and not re.search(r"<script(?![^>]*\bsrc=)", page), "the Content-Security-Policy forbids it"
    for link in re.findall(r"(?:src|href)=\"([^\"]+)\"", page):
        assert (STATIC.parent / link).is_file(), link


def test_the_page_names_all_modules_so_that_none_waits_for_the_one_that_imports_it() -> None:
    named = re.findall(r'<link rel="modulepreload" href="static/([^"]+)">', (STATIC / "index.html").read_text())
    assert sorted(named) == sorted(path.name for path in STATIC.glob("*.js") if path.name != "app.js")
