"""Docstrings as Markdown: their code as Python, their aligned columns as they stand."""

import ast
import re

_COLUMNS = re.compile(r"\S+( \S+)* {2,}\S")
_ONE_WORD = (ast.Name, ast.Attribute, ast.Constant)


def markdown(doc: str) -> str:
    """A docstring whose code, indented or not, is in fences."""
    parts: list[tuple[str, list[str]]] = []
    for paragraph in re.split(r"\n{2,}", doc.strip("\n")) if doc else ():
        kind = _kind(paragraph)
        if parts and kind != "prose" and parts[-1][0] == kind:
            parts[-1][1].append(paragraph)
        else:
            parts.append((kind, [paragraph]))
    return "\n\n".join(_shown(kind, "\n\n".join(paragraphs)) for kind, paragraphs in parts)


def first_sentence(doc: str) -> str:
    """What a list of names tells of one: the first paragraph up to the end of its first sentence."""
    paragraph = " ".join(doc.strip().split("\n\n")[0].split())
    sentence = re.match(r".*?[.:](?=\s|$)", paragraph)
    return (sentence[0] if sentence else paragraph).rstrip(":")


def _kind(paragraph: str) -> str:
    lines = paragraph.splitlines()
    if all(line.startswith("    ") for line in lines):
        return "indented"
    if lines[0].startswith(("- ", "* ", "1. ", "|")):
        return "prose"
    if len(lines) > 2 and all(_COLUMNS.match(line) for line in lines):
        return "columns"
    return "code" if _is_code(paragraph) else "prose"


def _is_code(text: str) -> bool:
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return False
    return not all(isinstance(one, ast.Expr) and isinstance(one.value, _ONE_WORD) for one in body)


def _shown(kind: str, text: str) -> str:
    if kind == "prose":
        return text
    if kind == "indented":
        text = re.sub(r"^ {4}", "", text, flags=re.MULTILINE)
        kind = "code" if _parses(text) else "columns"
    return f"```{'python' if kind == 'code' else 'text'}\n{text}\n```"


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
