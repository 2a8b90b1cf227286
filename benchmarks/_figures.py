"""Results: a number (`Measure`) or how a number grows (`Curve`), for ours, the peers and the floor.

Each keeps all its samples, can be printed, and converts to JSON and back.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Samples = Sequence[float]
Line = Mapping[float, Samples]
"""Samples by their x value."""


class BenchmarkError(Exception):
    """The numbers are meaningless: something did not run or was lost."""


def check(holds: bool, message: str) -> None:
    if not holds:
        raise BenchmarkError(message)


@dataclass(frozen=True)
class Bar:
    """A limit for our median, or with `ratio` for our median divided by the first peer's."""

    sign: str
    """`<`, `<=` or `>=`."""
    limit: float
    ratio: bool = False

    def met(self, value: float) -> bool:
        return {"<": value < self.limit, "<=": value <= self.limit, ">=": value >= self.limit}[self.sign]

    def text(self, unit: str) -> str:
        return f"ratio {self.sign} {self.limit:g}" if self.ratio else f"{self.sign} {number(self.limit, unit)}"


@dataclass(frozen=True)
class Ratio:
    """A ratio of medians, with the least and the greatest ratio of any two samples."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, ours: Samples, other: Samples) -> Ratio:
        return cls(statistics.median(ours) / statistics.median(other), min(ours) / max(other), max(ours) / min(other))

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.middle:.3g}"
        return f"{self.middle:.3g} [{self.least:.3g} .. {self.most:.3g}]"


@dataclass(frozen=True)
class Measure:
    """Samples of one number for ours and for each peer. A bar's ratio is to the first peer.

    The floor is what the hardware or the bare framework allows, by name: `{"import torch": [...]}`.
    """

    name: str
    unit: str
    ours: Samples
    peers: Mapping[str, Samples] = field(default_factory=dict)
    bar: Bar | None = None
    floor: Mapping[str, Samples] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        first = next(iter(self.peers.values()), None)
        return Ratio.of(self.ours, first).middle if first else None

    @property
    def met(self) -> bool | None:
        """None if there is no bar or its peer was left out."""
        value = self.ratio if self.bar and self.bar.ratio else statistics.median(self.ours)
        return None if self.bar is None or value is None else self.bar.met(value)

    def met_text(self) -> str:
        return _met_text(self.bar, self.met)

    def __str__(self) -> str:
        parts = [f"{self.name}: ours {note(self.ours, self.unit)}"]
        parts += [f"floor ({name}) {note(samples, self.unit)}" for name, samples in self.floor.items()]
        for name, samples in self.peers.items():
            parts.append(f"{name} {note(samples, self.unit)}, ratio {Ratio.of(self.ours, samples)}")
        if self.bar:
            parts.append(f"bar {self.bar.text(self.unit)} {self.met_text()}")
        return ", ".join(parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": _summary(self.ours),
            "floor": {name: _summary(samples) for name, samples in self.floor.items()},
            "peers": {name: _summary(samples) for name, samples in self.peers.items()},
            "ratios": {name: dataclasses.asdict(Ratio.of(self.ours, samples)) for name, samples in self.peers.items()},
            "bar": dataclasses.asdict(self.bar) if self.bar else None,
            "met": self.met,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measure:
        return cls(
            data["name"],
            data["unit"],
            data["ours"]["samples"],
            {name: summary["samples"] for name, summary in data["peers"].items()},
            Bar(**data["bar"]) if data["bar"] else None,
            {name: summary["samples"] for name, summary in data["floor"].items()},
        )


@dataclass(frozen=True)
class Curve:
    """How a number changes with x. Peers may have fewer values of x.

    A bar limits the growth: ours at the last x divided by ours at the first. With `ratio`, it limits ours divided by
    the first peer, at the last x of that peer. A bar that is a text is only printed.
    """

    name: str
    unit: str
    x_label: str
    ours: Line
    peers: Mapping[str, Line] = field(default_factory=dict)
    floor: Mapping[str, Line] = field(default_factory=dict)
    bar: Bar | str | None = None

    @property
    def xs(self) -> list[float]:
        return sorted(self.ours)

    @property
    def growth(self) -> Ratio:
        return Ratio.of(self.ours[self.xs[-1]], self.ours[self.xs[0]])

    @property
    def ratio(self) -> float | None:
        last = self.last_of_peer
        if last is None:
            return None
        first = next(iter(self.peers.values()))
        return Ratio.of(self.ours[last], first[last]).middle

    @property
    def last_of_peer(self) -> float | None:
        """The last x that the first peer has too."""
        first = next(iter(self.peers.values()), {})
        return max(first.keys() & self.ours.keys(), default=None)

    @property
    def met(self) -> bool | None:
        if not isinstance(self.bar, Bar):
            return None
        value = self.ratio if self.bar.ratio else self.growth.middle
        return None if value is None else self.bar.met(value)

    def bar_text(self) -> str:
        if isinstance(self.bar, Bar):
            return self.bar.text("") if self.bar.ratio else f"growth {self.bar.sign} {self.bar.limit:g}"
        return self.bar or ""

    def met_text(self) -> str:
        return _met_text(self.bar if isinstance(self.bar, Bar) else None, self.met)

    def at(self, x: float) -> Measure:
        """The samples at one x."""
        return Measure(
            f"{self.name}, {self.x_label} {number(x, '')}",
            self.unit,
            self.ours[x],
            {name: line[x] for name, line in self.peers.items() if x in line},
            None,
            {name: line[x] for name, line in self.floor.items() if x in line},
        )

    def __str__(self) -> str:
        places = ", ".join(f"{number(x, '')}: {note(self.ours[x], self.unit)}" for x in self.xs)
        parts = [f"{self.name} by {self.x_label}: ours {places}, growth {self.growth}"]
        for kind, lines in (("floor", self.floor), ("", self.peers)):
            for name, line in lines.items():
                places = ", ".join(f"{number(x, '')}: {note(line[x], self.unit)}" for x in sorted(line))
                parts.append(f"{kind} {name} {places}".strip())
        if self.bar:
            parts.append(f"bar {self.bar_text()} {self.met_text()}".strip())
        return "; ".join(parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "x_label": self.x_label,
            "ours": _line_json(self.ours),
            "floor": {name: _line_json(line) for name, line in self.floor.items()},
            "peers": {name: _line_json(line) for name, line in self.peers.items()},
            "growth": dataclasses.asdict(self.growth),
            "bar": dataclasses.asdict(self.bar) if isinstance(self.bar, Bar) else self.bar,
            "met": self.met,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Curve:
        return cls(
            data["name"],
            data["unit"],
            data["x_label"],
            _line(data["ours"]),
            {name: _line(points) for name, points in data["peers"].items()},
            {name: _line(points) for name, points in data["floor"].items()},
            Bar(**data["bar"]) if isinstance(data["bar"], dict) else data["bar"],
        )


@dataclass(frozen=True)
class Report:
    """The results of a benchmark."""

    measures: Sequence[Measure] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    """Further results without a bar: name and text."""
    curves: Sequence[Curve] = ()

    def line(self, question: str) -> str:
        notes = [f"{name} {text}" for name, text in self.notes.items()]
        return f"{question} | " + " | ".join([*map(str, self.measures), *map(str, self.curves), *notes])

    def as_json(self) -> dict[str, Any]:
        return {
            "measures": [measure.as_json() for measure in self.measures],
            "curves": [curve.as_json() for curve in self.curves],
            "notes": dict(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        return cls(
            [Measure.from_json(one) for one in data["measures"]],
            data["notes"],
            [Curve.from_json(one) for one in data["curves"]],
        )


def note(samples: Samples, unit: str) -> str:
    """The median with the smallest and the largest sample."""
    middle = number(statistics.median(samples), unit)
    if len(samples) < 2:
        return middle
    return f"{middle} [{number(min(samples), '')} .. {number(max(samples), '')}]"


def number(value: float, unit: str) -> str:
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits}{unit}" if unit.startswith("/") else f"{digits} {unit}".strip()


def _met_text(bar: Bar | None, met: bool | None) -> str:
    if bar is None:
        return ""
    return {None: "not decided: its peer was left out", True: "met", False: "NOT MET"}[met]


def _summary(samples: Samples) -> dict[str, Any]:
    check(len(samples) > 0, "a measure has no samples")
    return {
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "samples": list(samples),
    }


def _line_json(line: Line) -> list[dict[str, Any]]:
    return [{"x": x, **_summary(line[x])} for x in sorted(line)]


def _line(points: Sequence[Mapping[str, Any]]) -> dict[float, list[float]]:
    return {point["x"]: point["samples"] for point in points}
