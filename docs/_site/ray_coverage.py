"""How much of Ray's public interface is here: names, members of classes and arguments, by area.

    python docs/_site/ray_coverage.py             # what is present, and present or left out on purpose
    python docs/_site/ray_coverage.py --missing   # what is neither, a line each

Compares `docs/ray_names/ray_public_api.json` with the package. `omissions.txt` beside it has what cannot exist here, a
name a line with its reason after "#".
"""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from ray_names_page import Facts, find_ours, load_facts, load_list, takes_argument

MAX_OMITTED = 0.06
"""The share of each area that may be left out on purpose. All else is present."""


class Part(NamedTuple):
    """One thing that Ray has: `ray.tune.Tuner`, `ray.tune.Tuner.fit` or `ray.tune.Tuner(trainable)`."""

    area: str
    kind: str
    label: str
    is_present: bool


def list_parts(facts: Facts, find: Any = find_ours) -> Iterator[Part]:
    """Everything that counts: nothing that Ray deprecates, and no member or argument of a name that is not here."""
    for module, names in facts.items():
        area = module.split(".")[1]
        for name, entry in names.items():
            if entry.get("status") == "DEPRECATED" or (entry["kind"] == "value" and name[0].islower()):
                continue
            label, ours = f"{module}.{name}", find(module, name)
            yield Part(area, "names", label, ours is not None)
            if ours is not None:
                yield from _list_parts_of(area, label, entry, ours)


def _list_parts_of(area: str, label: str, entry: dict[str, Any], ours: Any) -> Iterator[Part]:
    if entry["kind"] != "value" and callable(ours):
        yield from _list_arguments(area, label, entry, ours)
    fields = {*getattr(ours, "__dataclass_fields__", {}), *getattr(ours, "__annotations__", {})}
    for member, described in (entry.get("members") or {}).items():
        is_described = isinstance(described, dict)
        if is_described and described.get("status") == "DEPRECATED":
            continue
        is_present = hasattr(ours, member) or member in fields
        yield Part(area, "members", f"{label}.{member}", is_present)
        if is_present and is_described and callable(getattr(ours, member, None)):
            yield from _list_arguments(area, f"{label}.{member}", described, getattr(ours, member))


def _list_arguments(area: str, label: str, entry: dict[str, Any], ours: Any) -> Iterator[Part]:
    for name, kind, _ in entry.get("params") or []:
        if kind not in ("VAR_POSITIONAL", "VAR_KEYWORD") and not name.startswith("_"):
            yield Part(area, "arguments", f"{label}({name})", takes_argument(ours, name))


def find_problems() -> Iterator[str]:
    """What is neither here nor left out, and what is both."""
    omitted = load_list("omissions.txt")
    parts = list(list_parts(load_facts()))
    present = {part.label for part in parts if part.is_present}
    for part in parts:
        if not part.is_present and part.label not in omitted:
            yield f"{part.label} is neither here nor in omissions.txt"
    yield from (f"{label} is here: remove it from omissions.txt" for label in omitted if label in present)
    for area, total in Counter(part.area for part in parts).items():
        num_omitted = sum(part.label in omitted for part in parts if part.area == area)
        if num_omitted > MAX_OMITTED * total:
            yield f"{num_omitted} of {total} of {area} are left out, more than {MAX_OMITTED:.0%}"


def main() -> None:
    omitted = load_list("omissions.txt")
    parts = [*list_parts(load_facts())]
    if "--missing" in sys.argv:
        missing = [part for part in parts if not part.is_present]
        print(*sorted({part.label for part in missing} - {*omitted}), sep="\n")
        return
    total = Counter((part.area, part.kind) for part in parts)
    here = Counter((part.area, part.kind) for part in parts if part.is_present)
    for area in sorted({part.area for part in parts}):
        counts = ", ".join(
            f"{kind} {here[area, kind]}/{total[area, kind]}" for kind in ("names", "members", "arguments")
        )
        of_area = [part for part in parts if part.area == area]
        settled = sum(part.is_present or part.label in omitted for part in of_area)
        print(f"{area} {counts}; present or omitted {settled}/{len(of_area)} = {100 * settled / len(of_area):.1f} %")
    num_here = sum(here.values())
    print(f"all {num_here}/{len(parts)} = {100 * num_here / len(parts):.1f} %")


if __name__ == "__main__":
    main()
