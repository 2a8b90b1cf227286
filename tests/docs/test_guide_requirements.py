"""No guide ends at a missing package: what a page imports, it says to install, or the first guide has installed it."""

import re
import sys
from pathlib import Path

import pytest

from paceline._core.lazy_imports import EXTRA_OF

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.glob("*/*.md"))
ALWAYS = {"__future__", "paceline", "cloudpickle", "msgspec", "numpy", "psutil", "pyarrow", "xxhash"}
USES = {
    "pandas": re.compile(r"\.to_pandas\(|metrics_dataframe|get_dataframe\(|batch_format=\"pandas\""),
    **{
        extra: re.compile(rf"\b({names})\(")
        for extra, names in {
            "audio": "read_audio",
            "avro": "(read|write)_avro",
            "delta": "(read|write)_delta",
            "iceberg": "(read|write)_iceberg",
            "images": "(read|write)_images",
            "lance": "(read|write)_lance",
            "mlflow": "MLflowLoggerCallback|setup_mlflow",
            "opentelemetry": "OpenTelemetryCallback",
            "tfrecords": "(read|write)_tfrecords",
            "video": "read_videos",
            "wandb": "WandbLoggerCallback|setup_wandb",
            "zarr": "(read|write)_zarr",
        }.items()
    },
}
"""Extra -> what needs it without an import of it."""


def installed(text: str) -> set[str]:
    """Packages and extras that a page's `pip install` lines name."""
    extras = {extra for group in re.findall(r"(?:paceline|\.)\[([\w,]+)\]", text) for extra in group.split(",")}
    return extras | {word for line in re.findall(r"pip install\s+([^`\n]+)", text) for word in line.split()}


def needed(text: str) -> set[str]:
    blocks = re.findall(r"^ *```python\b[^\n]*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    names = {name for block in blocks for name in re.findall(r"^\s*(?:from|import) +(\w+)", block, re.MULTILINE)}
    names |= {extra for extra, uses in USES.items() if any(uses.search(block) for block in blocks)}
    return names - ALWAYS - set(sys.stdlib_module_names)


FIRST = installed((DOCS / "guides" / "first-run.md").read_text())


def test_the_first_guide_installs_extras():
    assert {"torch", "pandas", "tune", "dashboard"} <= FIRST


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_needs_is_installed_by_then(page):
    text = (DOCS / page).read_text()
    known = FIRST | installed(text)
    assert [name for name in sorted(needed(text)) if EXTRA_OF.get(name, name) not in known] == []
