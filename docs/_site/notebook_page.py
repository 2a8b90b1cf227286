"""A notebook as a page: its text as it is, its code in fences, and under it what it printed."""

import json
from collections.abc import Iterator
from typing import Any


def text(notebook: str) -> str:
    return "\n\n".join(_parts(json.loads(notebook))) + "\n"


def _parts(notebook: dict[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        source = "".join(cell["source"]).strip("\n")
        if cell["cell_type"] == "markdown":
            yield source
        elif cell["cell_type"] == "code" and source:
            yield _fenced("python", source)
            printed = "".join(_printed(output) for output in cell["outputs"]).strip("\n")
            if printed:
                yield _fenced("text", printed)


def _printed(output: dict[str, Any]) -> str:
    """What there is of it in plain text."""
    if output["output_type"] == "stream":
        return "".join(output["text"])
    return "".join(output.get("data", {}).get("text/plain", [])) + "\n"


def _fenced(language: str, content: str) -> str:
    return f"````{language}\n{content}\n````"
