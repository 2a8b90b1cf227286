"""What tests ask of a page."""

from typing import Any


def described(page: Any, title: str) -> str:
    """The text description of a plot."""
    text: str = page.locator(f'[data-plot="{title}"] .plot-area p').inner_text()
    return text


def wait_described(page: Any, title: str, text: str) -> None:
    """Until a plot says this."""
    page.wait_for_function(
        "([title, text]) => [...document.querySelectorAll('[data-plot]')].some((plot) => plot.dataset.plot === title"
        " && plot.querySelector('.plot-area p').textContent.includes(text))",
        arg=[title, text],
    )


DRAWN = """
([title, begin, end, steps]) => {
  const area = document.querySelector(`[data-plot="${title}"] .plot-area`);
  const canvas = area?.querySelector("canvas");
  const over = area?.querySelector(".u-over");
  if (!canvas?.width || !over?.clientWidth) return null;
  const ratio = canvas.width / canvas.clientWidth;
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const pen = copy.getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const [part, base] = [over.getBoundingClientRect(), canvas.getBoundingClientRect()];
  return steps.map((step) => {
    const x = Math.round((part.left - base.left + (part.width * (step - begin)) / (end - begin)) * ratio);
    const { data } = pen.getImageData(x, (part.top - base.top) * ratio, 1, part.height * ratio);
    // The first line is blue, and nothing else is.
    for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 60 && data[at + 2] - data[at] > 60) return true;
    return false;
  });
}
"""


def wait_drawn(page: Any, title: str, span: tuple[float, float], expected: dict[float, bool]) -> None:
    """Until a plot of these x has a line at some of them, and none at others."""
    page.wait_for_function(
        f"([asked, expected]) => JSON.stringify(({DRAWN})(asked)) === JSON.stringify(expected)",
        arg=[[title, *span, list(expected)], list(expected.values())],
    )


def wait_rows(page: Any, count: int) -> None:
    """Until the list has so many runs."""
    page.wait_for_function("(count) => document.querySelectorAll('tbody tr').length === count", arg=count)
