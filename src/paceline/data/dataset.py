"""Dataset: a lazy plan with the methods that people know. Each adds a node, or has the plan run."""

from __future__ import annotations

from paceline.data.plan import Node


class Dataset:
    """Rows that are read, transformed and handed out as a stream.

    Nothing is read before rows are asked for. A dataset is never changed: each method gives another one.
    """

    def __init__(self, plan: Node) -> None:
        self._plan = plan
