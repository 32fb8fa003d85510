"""The report in a real browser: light, dark, narrow; nothing clipped, readable, filters work.

What matters is measured in the page; the pictures lie in the test's temporary folder, to look at.
"""

import json
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitc.report.page import page
from tests.report_pages import HOSTILE, evidence, model, random_model

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="needs a browser: apt-get install chromium, or Google Chrome"
)

#: In front of the page's own script: what goes wrong is kept. Behind it: what measures the page.
WATCH = """<script>
window.wrong = [];
addEventListener("error", (e) => wrong.push(String(e.message || e.target)), true);
addEventListener("unhandledrejection", (e) => wrong.push(String(e.reason)));
document.addEventListener("securitypolicyviolation", (e) => wrong.push("policy: " + e.blockedURI));
for (const name of ["error", "warn"]) console[name] = (...words) => wrong.push(words.join(" "));
</script>"""
MEASURE = Path(__file__).parents[1].joinpath("report_measure.js")
#: Around it: a window has a least width, a frame has none.
FRAME = """<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<iframe src="measured.html" width="{width}" height="1300" style="border:0"></iframe><script>
addEventListener("message", (event) => {{
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = event.data;
  document.body.append(found);
}});
</script>"""
DARK = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
SHAPES = {
    "light": (1280, ()),
    "dark": (1010, DARK),
    "narrow": (360, ()),
    "narrow dark": (360, DARK),
}


def browse(folder: Path, file: Path, width: int, *words: str) -> str:
    """What a browser prints that opens a file in a window of its own."""
    done = subprocess.run(
        [
            str(BROWSER),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width},1400",
            "--virtual-time-budget=5000",
            *words,
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def measure(folder: Path, text: str, width: int, *words: str) -> dict[str, Any]:
    """What `MEASURE` finds in a page."""
    file, frame = folder / "measured.html", folder / "frame.html"
    frame.write_text(FRAME.format(width=width), "utf-8")
    start = text.replace('<meta charset="utf-8">', f'<meta charset="utf-8">{WATCH}', 1)
    script = f"<script>{MEASURE.read_text('utf-8')}</script>"
    file.write_text(start.replace("</body>", f"{script}</body>"), "utf-8")
    dom = browse(folder, frame, 1400, *words, "--dump-dom")
    _, _, rest = dom.partition('<pre id="found">')
    assert rest, "the page's script has not come to its end"
    return json.loads(unescape(rest.partition("</pre>")[0]))


@pytest.mark.parametrize("shape", SHAPES)
def test_in_a_browser(shape: str, tmp_path: Path) -> None:
    width, words = SHAPES[shape]
    text = page([model()], evidence())
    found = measure(tmp_path, text, width, *words)
    assert found["width"] == width
    assert found["scrolls"] <= width, "it scrolls sideways"
    assert not found["clipped"]
    assert not found["broken"]
    assert found["contrast"][0] >= 4.5, found["contrast"]
    assert not found["wrong"] and not found["fetched"]
    dark = "dark" in shape
    assert found["ground"] < 0.02 if dark else found["ground"] > 0.9
    assert found["toggled"] > 0.9 if dark else found["toggled"] < 0.02

    nodes = model().nodes
    plumbing = sum(record.is_plumbing for record in nodes)
    assert (found["rows"], found["all"]) == (len(nodes), len(nodes))
    assert found["shown"] == found["again"] == len(nodes) - plumbing
    assert found["found"] == ["/model/layer.1/q/MatMul", "/model/layer.1/q/Add"]
    assert found["boxes"] == 2 and found["count"].startswith("2 of ")
    assert found["none"] and set(found["packed"]) == {"packed"}
    assert found["sorted"] == sorted(found["sorted"], reverse=True)
    assert found["revealed"] and found["focused"]
    assert found["hover"].startswith(HOSTILE)


@pytest.mark.parametrize(("shape", "bright"), [("light", True), ("dark", False)])
def test_a_picture_is_as_bright_as_its_theme(shape: str, bright: bool, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    width, words = SHAPES[shape]
    file, picture = tmp_path / "report.html", tmp_path / f"{shape}.png"
    file.write_text(page([model()], evidence()), "utf-8")
    browse(tmp_path, file, width, *words, f"--screenshot={picture}")
    pixels = np.asarray(image.open(picture).convert("L"), np.float64)
    assert pixels.shape[1] == width
    middle = float(np.median(pixels))
    assert middle > 240 if bright else middle < 40
    ink = np.abs(pixels - middle) > 100
    assert 0.005 < ink.mean() < 0.3, "letters stand out, and there are some"


def test_a_large_model_without_times(tmp_path: Path) -> None:
    report = random_model(1200, 0)
    found = measure(tmp_path, page([report]), 360)
    assert found["rows"] == 1200
    assert found["scrolls"] <= 360 and not found["clipped"] and not found["broken"]
    assert not found["wrong"]
