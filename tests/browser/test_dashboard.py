"""The dashboard in headless Chromium, over the running demo: a cut, amber rows, a heal, struck-through rows; and X."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from api.tokens import Role, TokenStore
from tests.browser.chromium import needs_browser, picture
from tests.browser.conftest import OpenPage
from tests.embedded.installation import Up, begin_again, boreal, demo_up

pytestmark = needs_browser


TOLD = """() => {
  window.told = [];
  const note = () => { const tale = document.querySelector(".tale p"); if (tale) told.push(tale.textContent); };
  new MutationObserver(note).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""
"""Keeps what the tale says: a step may be over before a test on a busy machine looks."""


NEW_ROW = "shown => [...document.querySelectorAll('li.stable')].some(each => !shown.includes(each.textContent))"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with demo_up(tmp_path_factory.mktemp("demo")) as running:
        yield running


def test_a_visitor_cuts_a_stream_and_sees_its_results_taken_back(up: Up, open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 1000, "height": 1400})
    page.goto(up.link)
    page.get_by_role("link", name="departures").click()
    assert "token" not in page.url
    page.locator("li.stable").first.wait_for()

    # X: half of what it is, by the keyboard.
    slider = page.get_by_role("slider")
    before = slider.get_attribute("aria-valuetext")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("PageDown")
    page.get_by_text("X is", exact=False).first.wait_for()
    assert slider.get_attribute("aria-valuetext") != before
    assert up.call("GET", "/api/v1/queries/departures")[2]["revision"] > 1

    page.get_by_label("How long a fault lasts").select_option("60s")
    page.get_by_role("button", name="Cut jfk").click()
    # On a busy machine, a result that was only early may be shown before.
    page.locator("li.tentative .mark", has_text="? tentative, no jfk").first.wait_for()
    page.get_by_text("Answering tentatively: jfk missing").wait_for()
    # Several, so that a replay of it, whose rows come at slightly other times, has some too.
    page.locator("li.tentative").nth(4).wait_for()
    page.get_by_role("button", name="Heal jfk").click()
    undone = page.locator("li.undone")
    undone.first.wait_for()
    decoration = "each => getComputedStyle(each).textDecorationLine"
    assert page.locator("li.undone .data").first.evaluate(decoration) == "line-through"
    page.locator("li.tentative").first.wait_for(state="detached")
    key = undone.first.get_attribute("data-key")
    page.locator(f"li.stable[data-key='{key}']").first.wait_for()

    page.get_by_role("link", name="explain the delay").click()
    page.get_by_role("heading", name="Where X goes").wait_for()
    page.get_by_role("link", name="Operations").click()
    page.get_by_role("cell", name="chaos begun").first.wait_for()

    # The same failure, as the journal has it.
    page.go_back()
    page.go_back()
    page.get_by_text("would have shown tentative results in").wait_for()
    page.get_by_role("link", name="failures", exact=True).click()
    # On a busy machine, the query may have missed jfk for a moment by itself.
    failures = up.call("GET", "/api/v1/queries/departures/failures")[2]["failures"]
    made = max(failures, key=lambda failure: failure["rows_undone"])["id"]
    page.locator(f"a[href$='/failures/{made}']").click()
    page.get_by_text("It is over:").wait_for()
    page.get_by_text("tentative results were given and taken back").wait_for()
    for part in ("held", "tentative", "redo"):
        page.get_by_role("cell", name=part, exact=True).first.wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as JSON").click()
    told = json.loads(download.value.path().read_text())
    assert "jfk" in told["missing"]

    # And again, under an X that hides it.
    page.get_by_label("X in seconds").fill("60")
    page.get_by_role("button", name="Replay under another X").click()
    runs = page.get_by_role("table", name="Runs").get_by_role("row")
    runs.nth(3).wait_for(timeout=120_000)
    texts = [runs.nth(number).get_by_role("cell").all_inner_texts() for number in (1, 2, 3)]
    assert [text[0] for text in texts] == ["it happened", "replayed", "replayed"]
    assert int(texts[0][4]) == told["rows_tentative"] > 0 and int(texts[1][4]) > 0 and texts[2][4] == "0"
    page.screenshot(path=picture("replay"), full_page=True)
    page.reload()
    runs.nth(3).wait_for()
    assert page.errors == []


def test_a_query_is_made_on_a_page(up: Up, open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 1000, "height": 1000})
    page.goto(up.link)
    page.get_by_role("link", name="New query").click()
    spec = page.get_by_label("The query, in YAML")
    # The page puts an example there, and asks whether it can run, which takes its time on a busy machine.
    page.get_by_text("It can run").wait_for()
    text = spec.input_value()
    spec.fill(text.replace("delay_threshold: 3s", "delay_threshold: 3"))
    page.get_by_text("has no unit").wait_for()
    spec.fill(text)
    page.get_by_text("It can run").wait_for()
    planned = page.get_by_role("complementary")
    least = up.call("POST", "/api/v1/validate", yaml.safe_load(text))[2]["plan"]["least_x_ms"]
    planned.get_by_text(f"the least that this query can keep is {least:.0f} ms").wait_for()
    assert planned.get_by_role("row").nth(1).get_by_role("cell").first.inner_text() == "main"
    planned.locator("svg.dag").wait_for()
    page.get_by_role("button", name="Create").click()
    page.get_by_role("heading", name="counts", level=1).wait_for()
    assert up.call("DELETE", "/api/v1/queries/counts")[0] == 204
    assert page.errors == []


@pytest.mark.soak
def test_a_comparison_is_made_on_a_page_and_outlives_it(up: Up, open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 1000, "height": 1200})
    page.goto(up.link)
    page.get_by_role("link", name="Compare").click()
    page.get_by_label("X, several with commas").fill("1s, 20s")
    page.get_by_label("faults, one a line").fill("cut jfk at 1s for 2s")
    page.get_by_label("times faster").fill("600")
    page.get_by_label("seconds of rows").fill("6000")
    page.get_by_label("rows a second of each stream").fill("1")
    page.get_by_role("button", name="Compare").click()
    runs = page.get_by_role("table", name="Runs").get_by_role("row")
    runs.nth(2).wait_for(timeout=120_000)
    page.screenshot(path=picture("compare-runs"), full_page=True)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").click()
    header, short, long = (line.split(",") for line in download.value.path().read_text().splitlines())
    of = header.index("n_tentative")
    assert (short[0], long[0]) == ("1000", "20000") and int(short[of]) > 0 == int(long[of])
    page.reload()
    runs.nth(2).wait_for()
    assert page.errors == []


@pytest.mark.soak
def test_the_budget_of_an_objective_is_shown(up: Up, open_page: OpenPage) -> None:
    assert up.call("PATCH", "/api/v1/queries/departures", {"slo": "99.9%"})[0] == 200
    page = open_page(viewport={"width": 1000, "height": 1200})
    page.goto(up.link)
    page.get_by_role("link", name="departures").click()
    page.get_by_text("Objective: 99.9 % within 30 days").wait_for()
    meter = page.get_by_label("budget left for late results")
    value, said = meter.evaluate("each => [each.value, each.closest('label').innerText]")
    percent = int(said.split(" %")[0].split()[-1])
    assert value == pytest.approx(max(percent, 0) / 100, abs=0.01) and percent <= 100, "a late row may cost it all"
    page.screenshot(path=picture("objective"))
    assert up.call("PATCH", "/api/v1/queries/departures", {"slo": None})[0] == 200
    page.get_by_text("Objective: 99.9 %").wait_for(state="detached")
    assert page.errors == []


@pytest.mark.soak
def test_a_lost_server_is_said_and_found_again(up: Up, open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 1000, "height": 1000})
    page.goto(up.link)
    page.get_by_role("link", name="departures").click()
    page.locator("li.stable").first.wait_for()
    page.context.set_offline(True)
    page.get_by_text("No connection: what is shown is old").wait_for()
    page.screenshot(path=picture("lost"))
    page.context.set_offline(False)
    page.get_by_text("No connection: what is shown is old").wait_for(state="detached")
    page.get_by_text("as of").wait_for()


def test_a_killed_server_is_missed_with_the_age_of_what_is_shown_and_found_again(up: Up, open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 1000, "height": 1000})
    page.goto(up.link)
    page.get_by_role("link", name="departures").click()
    page.locator("li.stable").first.wait_for()
    os.kill(json.loads(boreal("status", "--json", "--data", str(up.data)).stdout)["processes"][0]["pid"], signal.SIGKILL)
    page.locator(".age", has_text=re.compile(r"^no connection, trying again: as of \d+\.\d s ago")).wait_for()
    page.get_by_text("No connection: what is shown is old").wait_for()
    page.screenshot(path=picture("killed"))
    shown = page.locator("li.stable").all_text_contents()
    begin_again(up)
    page.get_by_text("No connection: what is shown is old").wait_for(state="detached")
    page.locator(".age", has_text=re.compile(r"^as of \d+\.\d s ago")).wait_for()
    page.wait_for_function(NEW_ROW, arg=shown)
    assert page.url.endswith("#/q/departures") and page.errors == []


def test_amber_rows_do_not_stay_where_what_took_them_back_was_missed(up: Up, open_page: OpenPage) -> None:
    """The records after the first answer are no longer kept when the page comes back: its second answer begins with a gap."""
    page = open_page(viewport={"width": 1000, "height": 1400})
    gap = 'event: gap\ndata: {"after": "local:1", "first": "local:7"}\n\n'
    bodies = iter((event("tentative", 1), gap + event("stable", 7)))
    headers = {"Content-Type": "text/event-stream"}
    comes_back: list[Any] = []

    def answer(route: Any) -> None:
        if (body := next(bodies, None)) is None or comes_back:
            route.abort()
        elif body.startswith("event: gap"):
            comes_back.append(lambda: route.fulfill(headers=headers, body=body))
        else:
            route.fulfill(headers=headers, body=f"retry: 100\n\n{body}")

    page.route("**/output?**", answer)
    page.goto(up.link)
    page.get_by_role("link", name="departures").click()
    page.locator("li.tentative").wait_for()
    while not comes_back:
        page.wait_for_timeout(50)
    comes_back[0]()
    page.locator("li.stable").wait_for()
    assert not page.locator("li.tentative").count() and page.errors == []


def event(kind: str, number: int) -> str:
    """A record of the output, as a server-sent event."""
    record = {
        "seq": number, "type": kind, "key": "AA", "event_time": f"2013-01-02T10:{10 + number}:00Z", "data": {"n": number},
        "t_max": f"2013-01-02T10:{10 + number}:00Z", "ingest_ms": 1.0, "emitted_ms": 2.0, "missing_inputs": ["jfk"],
    }  # fmt: skip
    return f"id: local:{number}\nevent: {kind}\ndata: {json.dumps(record)}\n\n"


def test_of_thousands_of_queries_only_those_on_the_screen_are_rows(up: Up, open_page: OpenPage) -> None:
    def lines(count: int) -> list[dict[str, Any]]:
        common: dict[str, Any] = {"revision": 1, "paused": False, "delay_threshold": "3s", "x_ms": 3_000.0}
        common |= {"p99_ms": None, "violations": 0}
        inputs = [{"name": "jfk", "state": "live", "missing": False}]
        common |= {"state": "STABLE", "inputs": inputs}
        return [{"name": f"q{n:04}", "tentative": int(n == 1_500), **common} for n in range(count)]

    asked: list[str] = []

    def answer(route: Any) -> None:
        asked.append(route.request.url)
        limit = re.search(r"limit=(\d+)", route.request.url)
        shown = lines(min(int(limit[1]), 2_000) if limit else 2_000)
        route.fulfill(json={"queries": shown, "total": 2_000, "as_of_ms": 1.0, "stale": False})

    page = open_page(viewport={"width": 1000, "height": 800})
    page.route("**/overview**", answer)
    page.goto(up.link)
    page.get_by_role("link", name="q0000").wait_for()
    assert page.get_by_text("2000 of 2000").count() and "limit=200" in asked[0]
    assert page.locator("table.list tbody tr").count() < 100
    page.get_by_role("link", name="q0000").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "q0001"
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.get_by_role("link", name="q1999").wait_for()
    assert page.locator("table.list tbody tr").count() < 100 and not page.get_by_role("link", name="q0000").count()
    page.evaluate("scrollTo(0, 0)")
    page.get_by_role("button", name="query", exact=True).click()
    page.get_by_role("link", name="q1999").wait_for()
    assert "sort=-name" in page.url
    page.get_by_role("searchbox").fill("state:tentative")
    page.get_by_text("1 of 2000").wait_for()
    assert page.get_by_role("link", name="q1500").count() and "filter=state" in page.url
    assert page.errors == []


def test_a_viewer_only_looks_until_its_token_expires(up: Up, open_page: OpenPage) -> None:
    made, token = TokenStore(up.data).create("guest", [Role.VIEWER])
    page = open_page(viewport={"width": 1000, "height": 1000})
    page.goto(f"{up.status['api']}/#token={token}")
    page.get_by_role("link", name="departures").click()
    slider = page.get_by_role("slider")
    slider.wait_for()
    assert slider.is_disabled() and not page.get_by_role("button", name="Cut jfk").count()
    TokenStore(up.data).revoke(made.id)
    page.get_by_role("alert").get_by_text("Your token has expired or was revoked").wait_for()


@pytest.mark.soak
def test_a_token_expires_while_the_page_is_open_and_another_brings_it_back(up: Up, open_page: OpenPage) -> None:
    token = TokenStore(up.data).create("brief", [Role.VIEWER], for_s=20)[1]
    page = open_page(viewport={"width": 1000, "height": 1000})
    page.goto(f"{up.status['api']}/#token={token}")
    page.get_by_role("link", name="departures").click()
    page.get_by_role("slider").wait_for()
    alert = page.get_by_role("alert")
    alert.get_by_text("Your token has expired or was revoked").wait_for()
    assert not page.get_by_role("slider").count() and page.url.endswith("#/q/departures")
    page.screenshot(path=picture("expired"))
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Enter").click()
    alert.get_by_text("This token is not valid").wait_for()
    page.get_by_label("Token").fill(TokenStore(up.data).create("next", [Role.VIEWER])[1])
    page.get_by_role("button", name="Enter").click()
    page.get_by_role("slider").wait_for()
    page.locator("li.stable").first.wait_for()
    assert not alert.count() and page.errors == []


@pytest.mark.soak
def test_show_me_tells_it_all_and_leaves_x_as_it_was(up: Up, open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 1000, "height": 1400}, reduced_motion="reduce")
    page.goto(up.link)
    page.get_by_role("link", name="departures").click()
    before = up.call("GET", "/api/v1/queries/departures")[2]["delay_threshold"]
    page.get_by_role("button", name="Show me").wait_for()
    page.evaluate(TOLD)
    page.get_by_role("button", name="Show me").click()
    tale = page.locator(".tale")
    tale.get_by_text("every answer right in the end").wait_for(timeout=120_000)
    told = " ".join(page.evaluate("told"))
    for text in ("We cut", "results came without", "is back", "struck through", "Now X is", "The same cut"):
        assert text in told
    page.screenshot(path=picture("show-me"), full_page=True)
    assert "Nothing became amber" in tale.inner_text()
    tale.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Show me").wait_for()
    assert up.call("GET", "/api/v1/queries/departures")[2]["delay_threshold"] == before
    assert page.errors == []


def test_it_fits_a_phone_and_is_dark_where_the_system_is(up: Up, open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 360, "height": 740}, color_scheme="dark")
    page.goto(up.link)
    page.get_by_role("link", name="departures").click()
    page.locator("svg.dag").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the phone"
    page.locator("li.stable").first.wait_for()
    page.screenshot(path=picture("phone-dark"), full_page=True)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert max(dark[:3]) < 60


def make_failure(up: Up) -> dict[str, Any]:
    """A failure of the demo's query: one that was, or a short one."""
    address = "/api/v1/queries/departures/failures"
    if not up.call("GET", address)[2]["failures"]:
        assert up.call("POST", "/api/v1/chaos", {"fault": "cut jfk for 5s"})[0] == 202
    deadline = time.monotonic() + 60
    while not (failures := up.call("GET", address)[2]["failures"]):
        assert time.monotonic() < deadline, "the cut is no failure"
        time.sleep(0.1)
    newest: dict[str, Any] = failures[0]
    return newest


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(up: Up, open_page: OpenPage, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core: make setup installs it").Axe()
    # The policy of the page forbids axe's own script.
    page = open_page(color_scheme=scheme, bypass_csp=True, viewport={"width": 1000, "height": 1400})
    page.goto(up.link)
    page.get_by_role("link", name="departures").wait_for()
    pages = {
        "#/": "Queries",
        "#/q/departures": "departures",
        "#/q/departures/explain": "Where X goes",
        "#/q/departures/failures": "Failures",
        "#/new": "New query",
        "#/compare": "Compare",
        "#/ops": "Operations",
    }
    for place, title in pages.items():
        page.evaluate(f"location.hash = '{place}'")
        page.get_by_role("heading", name=title, level=1).wait_for()
        page.screenshot(path=picture(f"{title.replace(' ', '-').lower()}-{scheme}"), full_page=True)
        found = axe.run(page).response["violations"]
        assert not found, [(each["impact"], each["id"], each["nodes"][0]["html"]) for each in found]
    newest = make_failure(up)
    page.evaluate(f"location.hash = '#/q/departures/failures/{newest['id']}'")
    page.get_by_text("What happened when").wait_for()
    page.screenshot(path=picture(f"failure-{scheme}"), full_page=True)
    found = axe.run(page).response["violations"]
    assert not found, [(each["impact"], each["id"], each["nodes"][0]["html"]) for each in found]
