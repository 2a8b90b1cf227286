"""What `paceline migrate` does to one source: `rewrite` changes its imports, `differences` lists what differs."""

from typing import Literal

import msgspec

Kind = Literal["missing", "differs", "left"]


class Finding(msgspec.Struct, frozen=True):
    """One thing to know about a line. "missing" fails there, "differs" behaves otherwise, "left" stays with Ray."""

    line: int
    kind: Kind
    name: str
    text: str
    page: str
    """Where the page of Ray's names has the module."""
    cell: int = 0
    """Of a notebook: its cell, and `line` is the line there."""
