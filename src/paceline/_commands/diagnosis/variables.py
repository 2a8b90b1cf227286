"""Check environment variables: leftovers of other launchers, and names that look like ours but that nothing reads."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import partial

from paceline._commands.diagnosis import DiagnosisLine
from paceline._core import settings

_line = partial(DiagnosisLine, "environment")


def check_variables() -> Iterator[DiagnosisLine]:
    leftovers = settings.launcher_variables()
    if leftovers:
        text = ", ".join(f"{name}={value}" for name, value in leftovers.items())
        hint = f"unset {' '.join(leftovers)}; start scripts with python, Paceline starts the workers"
        yield _line("launcher", "warn", f"{text}: of torchrun, or another launcher", hint)
    ours, known = settings.paceline_variables(), settings.known_variables()
    unknown = sorted(ours.keys() - known)
    for name in unknown:
        similar = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        hint = f"did you mean {similar[0]}?" if similar else "docs/reference/environment.md lists all"
        yield _line(name, "warn", "no such setting; it has no effect", hint)
    if not leftovers and not unknown:
        yield _line("variables", "ok", f"nothing that clashes; {len(ours) or 'none'} of Paceline's set")
