"""The pictures of the documentation, taken of real runs: `make screenshots`.

The same pages are looked at by the other tests here; this one makes nicer runs, and takes its time.
"""

import io
import os
import socket
from pathlib import Path

import pytest
from browser_runs import make_pretty
from in_browser import wait_described

TARGET = os.environ["PACELINE_SCREENSHOTS"]

# Where these tests were run is nobody's business.
ELSEWHERE = """(names) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) for (const [name, other] of Object.entries(names)) {
    const text = texts.currentNode;
    if (text.data.includes(name)) text.data = text.data.replaceAll(name, other);
  }
}"""
SHOTS: dict[str, tuple[str, int, int, bool]] = {
    "runs": ("#/?metric=eval/loss", 1280, 420, False),
    "metrics": ("#/run/resnet18-cosine/metrics?smooth=0.7", 1280, 860, True),
    "compare": (
        "#/compare?run=resnet18-sgd&run=resnet18-adamw&run=resnet18-cosine&smooth=0.8&f=loss",
        1280,
        560,
        False,
    ),
    "timeline": ("#/run/resnet18-cosine/timeline", 1280, 640, False),
    "search": ("#/run/sweep", 1280, 800, False),
    "narrow": ("#/run/resnet18-cosine/metrics?f=loss", 400, 760, True),
}


@pytest.mark.timeout(900)
def test_pictures_for_the_documentation(tmp_path, serve, look, going):
    root = tmp_path / "runs"
    make_pretty(root)
    going(root).step(40)
    shown = serve(root)
    page = look(shown.at())
    page.locator("tr", has_text="live").get_by_text("running").wait_for()
    for name, (place, width, height, is_dark) in SHOTS.items():
        page = look(shown.at(place), width, height, dark=is_dark)
        if "metrics" in place or "compare" in place:
            wait_described(page, "eval/loss", "at ")
        page.locator("[role=tabpanel] .guarded > *, main .card, main tbody tr").first.wait_for()
        page.evaluate(ELSEWHERE, {str(root): "/data/runs", socket.gethostname(): "gpu-1"})
        page.wait_for_timeout(700)
        save(page.screenshot(), Path(TARGET) / f"dashboard-{name}.png")


def save(png: bytes, path: Path) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    image.save(path, optimize=True)
