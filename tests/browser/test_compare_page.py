"""compare.html in a real browser: it fits, nothing lies over anything else, and it is dark where the reader's system is."""

from __future__ import annotations

import json
import re
import subprocess
import zlib
from html import unescape
from pathlib import Path

import pytest

from embedded.compare import combinations, compare, prepare_folder
from embedded.session import RunOptions, make_session
from tests.browser.chromium import BROWSER, FLAGS, needs_browser
from tests.thoroughness import every

pytestmark = needs_browser

QUERY = """
name: small
streams:
  a: {time: time, schema: {k: int, v: double}}
  b: {time: time, schema: {k: int, v: double}}
operators:
  all: {union: [a, b]}
  counted: {aggregate: all, window: {tumbling: 500ms}, by: [k], compute: {n: count(*)}}
output: counted
delay_threshold: 1s
replicas: 2
"""
SOURCES = ("a=generate:40,5,4", "b=generate:40,5,4")
FAULTS = ("cut a at 1s for 2s", "cut b at 1.1s for 100ms", "crash main.r1 at 3.5s for 500ms")

PROBE = """<script>
const wrong = [];
const box = (part) => part.getBoundingClientRect();
// Glyphs are smaller than their boxes.
const meet = (one, other, slack = 2) =>
  one.left + slack < other.right && other.left + slack < one.right &&
  one.top + slack < other.bottom && other.top + slack < one.bottom;
const page = document.documentElement;
if (page.scrollWidth > page.clientWidth) wrong.push(`the page is ${page.scrollWidth} wide in ${page.clientWidth}`);
for (const svg of document.querySelectorAll("svg")) {
  const texts = [...svg.querySelectorAll("text")];
  const shapes = [...svg.querySelectorAll("rect, line.limit")];
  texts.forEach((text, place) => {
    const mine = box(text);
    if (mine.left < 0 || mine.right > page.clientWidth) wrong.push(`${text.textContent} leaves the page`);
    for (const other of texts.slice(place + 1))
      if (meet(mine, box(other))) wrong.push(`${text.textContent} lies over ${other.textContent}`);
    for (const shape of shapes)
      if (meet(mine, box(shape), 1.5)) wrong.push(`${text.textContent} lies over a ${shape.getAttribute("class")}`);
  });
}
const probed = document.createElement("pre");
probed.id = "probed";
probed.textContent = JSON.stringify({ wrong, drawings: document.querySelectorAll("svg").length });
document.body.append(probed);
</script></body>"""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of all eighteen runs."""
    folder = tmp_path_factory.mktemp("compared")
    (folder / "small.yaml").write_text(QUERY)
    session = make_session(folder / "small.yaml", SOURCES, RunOptions(speed="1x", faults=FAULTS, seed=1))
    prepare_folder(folder / "out")
    compare(session, *combinations(session, "all", "all"), folder / "out")
    return folder / "out" / "compare.html"


def browse(page: Path, profile: Path, *options: str) -> str:
    """Open the page in a browser of its own; what it prints."""
    command = [str(BROWSER), "--headless", *FLAGS, f"--user-data-dir={profile}", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.parametrize("width", every(3, [500, 800, 1200]))
def test_nothing_overflows_or_lies_over_anything_else(compared: Path, tmp_path: Path, width: int) -> None:
    probed = tmp_path / "probed.html"
    without_policy = re.sub(r"<meta http-equiv=.*?>", "", compared.read_text())
    probed.write_text(without_policy.replace("</body>", PROBE))
    shown = browse(probed, tmp_path / "profile", f"--window-size={width},2000", "--dump-dom")
    found = re.search(r'<pre id="probed">(.*?)</pre>', shown, re.DOTALL)
    assert found
    assert json.loads(unescape(found[1])) == {"wrong": [], "drawings": 3 + 18}


@pytest.mark.parametrize(
    ("options", "background"),
    [((), (255, 255, 255)), (("--blink-settings=preferredColorScheme=0",), (18, 24, 31))],
    ids=["light", "dark"],
)
def test_it_is_as_light_or_dark_as_the_system(
    compared: Path, tmp_path: Path, options: tuple[str, ...], background: tuple[int, int, int]
) -> None:
    picture = tmp_path / "page.png"
    browse(compared, tmp_path / "profile", "--window-size=1200,1000", f"--screenshot={picture}", *options)
    assert first_pixel(picture.read_bytes()) == background


def first_pixel(png: bytes) -> tuple[int, ...]:
    """Red, green and blue at the top left, which every filter of PNG leaves as they are."""
    packed, at = b"", 8
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        packed += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    return tuple(zlib.decompress(packed)[1:4])
