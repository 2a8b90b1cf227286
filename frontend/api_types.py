"""Writes `src/api.ts`: the TypeScript types of what the server sends, from the structs that it encodes.

python frontend/api_types.py
"""

import types
import typing
from pathlib import Path
from typing import Any, Literal

import msgspec

from paceline._dashboard.answers import AboutAnswer
from paceline._dashboard.report import ReportData
from paceline._view import model

TARGET = Path(__file__).parent / "src" / "api.ts"
SENT = (model.RunSnapshot, model.SearchDetail, model.Diff, AboutAnswer, ReportData)
"""What answers consist of; the structs inside them follow."""
ALIASES = {"State": model.State, "WorkerState": model.WorkerState, "Value": model.Value, "Tree": dict[str, Any]}
_NAMES = {int: "number", float: "number", str: "string", bool: "boolean", type(None): "null", Any: "unknown"}
_HEAD = "// What the server sends. Generated from the structs in Python by frontend/api_types.py: do not edit.\n"


def render_types() -> str:
    structs: dict[str, list[str]] = {}
    for struct in SENT:
        _add_struct(struct, structs)
    aliases = [f"export type {name} = {_render(hint, structs, skip=name)};" for name, hint in ALIASES.items()]
    interfaces = ["\n".join((f"export interface {name} {{", *fields, "}")) for name, fields in sorted(structs.items())]
    return "\n\n".join((_HEAD + "\n" + "\n".join(aliases), *interfaces)) + "\n"


def _add_struct(struct: type[msgspec.Struct], structs: dict[str, list[str]]) -> None:
    if struct.__name__ in structs:
        return
    lines = structs[struct.__name__] = []
    for name, hint in typing.get_type_hints(struct).items():
        lines.append(f"  readonly {name}: {_render(hint, structs)};")


def _render(hint: Any, structs: dict[str, list[str]], skip: str = "") -> str:
    alias = next((name for name, aliased in ALIASES.items() if aliased == hint and name != skip), None)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if alias is not None:
        return alias
    if hint in _NAMES:
        return _NAMES[hint]
    if origin is Literal:
        return " | ".join(f'"{value}"' for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(_render(each, structs) for each in arguments))
    if origin in (tuple, list):
        item = _render(arguments[0], structs)
        return f"readonly {f'({item})' if ' ' in item else item}[]"
    if origin is dict:
        return f"Readonly<Record<string, {_render(arguments[1], structs)}>>"
    _add_struct(hint, structs)
    return hint.__name__


if __name__ == "__main__":
    TARGET.write_text(render_types())
