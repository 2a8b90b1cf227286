"""Names that a newcomer can guess: functions are verbs or nouns, and a class name means one thing.

The numbers are ratchets: lower them when names get better, never raise them.
"""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "paceline"

IRREGULAR_PARTICIPLES = frozenset(
    re.findall(
        r"\w+",
        """
begun bent born borne bound broken brought built caught chosen dealt done drawn driven fallen fed felt forgotten
forsaken fought found frozen given gone grown heard held hidden hung kept known laid led left lent lost made meant met
paid rebuilt redone remade resent retold rewritten risen said seen sent shown shrunk sold sought spent spoken spun
stolen stood struck stuck swept sworn taken thought thrown told torn understood undone unheard unknown unmade unseen
withdrawn woken won worn written overwritten
""",
    )
)
NOT_PARTICIPLES = frozenset(["embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"])
"""Verbs and nouns that only look like participles."""

MAX_PARTICIPLE_FUNCTIONS = 977
MAX_REPEATED_CLASS_NAMES = 91
RETIRED_MODULE_NAMES: frozenset[str] = frozenset()
"""Words that no module may be called any more."""


def is_bare_participle(name: str) -> bool:
    word = name.strip("_")
    if "_" in word or word in NOT_PARTICIPLES:
        return False
    return word in IRREGULAR_PARTICIPLES or (len(word) > 3 and word.endswith("ed"))


def parse_package() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def test_few_functions_are_named_by_a_bare_participle():
    named = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}"
        for path, tree in parse_package().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_bare_participle(node.name)
    ]
    assert len(named) <= MAX_PARTICIPLE_FUNCTIONS, "\n".join(named)


def test_a_class_name_is_defined_once():
    places = defaultdict(list)
    for path, tree in parse_package().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    repeated = {name: where for name, where in places.items() if len(where) > 1}
    assert len(repeated) <= MAX_REPEATED_CLASS_NAMES, repeated


def test_no_module_has_a_retired_name():
    names = Counter(part for path in PACKAGE.rglob("*.py") for part in path.relative_to(PACKAGE).with_suffix("").parts)
    assert not RETIRED_MODULE_NAMES & names.keys()
