"""One browser for the pages of the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.chromium import BROWSER, FLAGS

WITHIN_MS = 30_000

OpenPage = Callable[..., Any]
"""Opens a page of its own profile, by the options of Playwright's contexts; what its scripts throw, and what its policy
forbids, is in `page.errors`."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: make setup installs it")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    contexts = []

    def open_one(**options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WITHIN_MS)
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("console", lambda said: page.errors.append(said.text) if "Content Security" in said.text else None)
        return page

    yield open_one
    for context in contexts:
        context.close()
