"""The tables of guides/ray-names: every public name of Ray, and what differs here.

Made of `docs/ray_names/ray_public_api.json` (what Ray has), the package's `_core/ray_names.toml` (what differs in
behaviour, and why a name is missing), `docs/ray_names/omissions.txt` (what cannot exist here) and the package itself:
missing names, members and arguments are found by comparison, and what is the same has the first line of its docstring.
"""

import importlib.util
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import paceline
from paceline._core.ray_names import Notes, explain_argument, load_notes

FOLDER = Path(__file__).parents[1] / "ray_names"
AREAS = {"ray.train": "Ray Train", "ray.tune": "Ray Tune", "ray.air": "Ray AIR", "ray.data": "Ray Data"}

Facts = dict[str, dict[str, Any]]


def load_facts() -> Facts:
    facts: Facts = json.loads((FOLDER / "ray_public_api.json").read_text())["modules"]
    return {module: names for module, names in facts.items() if not isinstance(names.get("error"), str)}


def load_list(name: str) -> dict[str, str]:
    """Read the labels in a file of docs/ray_names, with what stands after "#"."""
    lines = (line.partition("#") for line in (FOLDER / name).read_text().splitlines())
    return {label.strip(): reason.strip() for label, _, reason in lines if label.strip()}


def text() -> str:
    facts, notes = load_facts(), load_notes()
    parts = []
    for prefix, title in AREAS.items():
        parts.append(f"## {title}\n")
        modules = [module for module in {**facts, **notes} if (module + ".").startswith(prefix + ".")]
        omitted = load_list("omissions.txt")
        for module in sorted(modules):
            parts.append(_format_module(module, facts.get(module, {}), notes.get(module, {}), omitted))
    parts.append("## Ray Core and others\n")
    parts.append(_format_module("ray", {}, notes["ray"]))
    return "\n".join(parts)


def _format_module(
    module: str, facts: dict[str, Any], notes: dict[str, str], omitted: Mapping[str, str] = MappingProxyType({})
) -> str:
    same, rows = [], []
    for name in sorted({*facts, *notes} - {"about", "from"}, key=str.lower):
        ours, label = find_ours(module, name), f"{module}.{name}"
        entry = facts.get(name, {})
        if ours is None:
            if entry.get("status") != "DEPRECATED":
                rows.append(f"| `{name}` | no | {notes.get(name) or omitted.get(label, '')} |")
            continue
        missing = list(find_missing(ours, entry)) if entry else []
        missing = [each for each in missing if f"{each}=" not in missing]  # fields are arguments as well
        differs = [notes[name].rstrip(".") + "."] if name in notes else []
        if missing:
            differs.append("Not here: " + ", ".join(_format_missing(each, label, omitted) for each in missing) + ".")
        if differs:
            rows.append(f"| `{name}` | yes | {' '.join(differs)} |")
        else:
            same.append(f"- `{name}`{_format_summary(ours)}")
    lines = [f"### {module}\n"]
    if "about" in notes:
        lines.append(notes["about"] + "\n")
    if same:
        lines += ["The same:\n", *same, ""]
    if rows:
        lines += ["| Ray | here | what differs |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def _format_missing(missing: str, label: str, omitted: Mapping[str, str]) -> str:
    """Name a member or an argument, with the reason if it is left out on purpose."""
    is_of_class = missing.endswith("=") and "(" not in missing
    part = f"({missing[:-1]})" if is_of_class else "." + missing.replace("=)", ")")
    reason = omitted.get(label + part, "")
    return f"`{missing}` ({reason})" if reason else f"`{missing}`"


def _format_summary(ours: Any) -> str:
    """The first line of our docstring, unless Python made it."""
    is_ours = str(getattr(ours, "__module__", "")).startswith("paceline.")
    written = inspect.getdoc(ours) if is_ours and callable(ours) else None
    first = (written or "").partition("\n")[0]
    return f": {first}" if first and not first.startswith(f"{ours.__name__}(") else ""


def find_unexplained() -> list[str]:
    """Names that are missing here without a note, and notes for names that neither Ray nor this page has."""
    facts, notes, page = load_facts(), load_notes(), text()
    found = [
        f"{module}.{name}"
        for module, names in facts.items()
        for name, entry in names.items()
        if entry.get("status") != "DEPRECATED"
        if f"`{name}`" not in page or (find_ours(module, name) is None and name not in notes.get(module, {}))
    ]
    found += [f"{module}: no such area" for module in notes if not f"{module}.".startswith(("ray.", *AREAS))]
    return found + [each for module in facts for each in _find_unexplained_arguments(module, facts[module], notes)]


def _find_unexplained_arguments(module: str, names: dict[str, Any], notes: Notes) -> Iterator[str]:
    """Arguments that Ray has and we do not, about which the TypeError could only say that they are unknown."""
    for name, entry in names.items():
        ours = find_ours(module, name)
        is_constructed = not any("not by its constructor" in table.get(name, "") for table in notes.values())
        for missing in find_missing(ours, entry) if ours is not None else ():
            method, _, argument = missing.rstrip("=)").rpartition("(")
            if "=" in missing and (method or is_constructed):
                owners = [each.__name__ for each in ours.__mro__] if isinstance(ours, type) else []
                if not explain_argument(ours.__module__, owners, method or name, argument):
                    yield f"{module}.{name}: {missing}"


def find_ours(module: str, name: str) -> Any:
    """What `paceline` has for a name of Ray: in the module (or class) of that name, or the nearest package above it."""
    parts = module.replace(".v2", "").replace("ray", "paceline", 1).split(".")
    for length in range(len(parts), 1, -1):
        package, last = ".".join(parts[: length - 1]), parts[length - 1]
        try:
            found = importlib.import_module(f"{package}.{last}")
        except ModuleNotFoundError:
            found = getattr(importlib.import_module(package), last, None) if _is_importable(package) else None
        if hasattr(found, name):
            return getattr(found, name)
    return getattr(paceline, name, None) if module == "ray" else None


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def find_missing(ours: Any, entry: dict[str, Any]) -> Iterator[str]:
    """Members and arguments that Ray's has and ours has not."""
    if entry["kind"] != "value" and callable(ours):
        yield from _missing_arguments(ours, entry.get("params"), "")
    for member, described in (entry.get("members") or {}).items():
        if isinstance(described, dict) and described.get("status") == "DEPRECATED":
            continue
        fields = {*getattr(ours, "__dataclass_fields__", {}), *getattr(ours, "__annotations__", {})}
        if not hasattr(ours, member) and member not in fields:
            yield member
        elif isinstance(described, dict) and callable(getattr(ours, member, None)):
            yield from _missing_arguments(getattr(ours, member), described.get("params"), member)


def _missing_arguments(ours: Any, parameters: list[Any] | None, member: str) -> Iterator[str]:
    for name, kind, _ in parameters or []:
        is_named = kind not in ("VAR_POSITIONAL", "VAR_KEYWORD") and not name.startswith("_")
        if is_named and not takes_argument(ours, name):
            yield f"{member}({name}=)" if member else f"{name}="


def takes_argument(ours: Any, name: str) -> bool:
    """Whether a function or class has this argument; one that cannot be looked at has all."""
    try:
        have = inspect.signature(ours).parameters
    except (TypeError, ValueError):
        return True
    return name in have or any(each.kind is each.VAR_KEYWORD for each in have.values())
