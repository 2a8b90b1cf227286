"""The package's modules as syntax trees, which several tests of the surface walk through."""

import ast
import functools
import gc
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "paceline"


@functools.cache
def parse_source(source: str) -> ast.Module:
    """Parse without the collector, which would walk through all trees so far again and again, for most of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if was_enabled:
            gc.enable()


def parse_package() -> dict[Path, ast.Module]:
    return {path: parse_source(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
