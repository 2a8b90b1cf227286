"""Names that a newcomer can guess: functions are verbs or nouns, and a class name means one thing."""

import ast
import re
from collections import Counter, defaultdict

from source_trees import PACKAGE, parse_package

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

PUBLIC_PARTICIPLES = frozenset(["applied", "completed", "continued", "fired", "unfired"])
"""Methods that users call or override, and so keep their names."""

PUBLIC_TWINS = frozenset(
    re.findall(
        r"\w+",
        """
CheckpointConfig FailureConfig LoggerCallback Result RunConfig ScalingConfig ReportCallback TuneCallback
TuneReportCallback TuneReportCheckpointCallback PacelineDDPStrategy PacelineDeepSpeedStrategy PacelineFSDPStrategy
PacelineLightningEnvironment
""",
    )
)
"""Classes that users import by one name from several packages, as in Ray."""

RETIRED_MODULE_NAMES = frozenset(
    re.findall(
        r"\w+",
        """
acts ahead asked asking aside beside book carried carry chosen clerk crew declared depot described desk escort
explained fired gathering given guest held judged lasting look made means near orders others parcel playing portable
presence printed quiet reception room seen shell shown sightings spending standing story supply telling trouble
unheard vitals watched words
""",
    )
)
"""Private words of earlier days: no module is called so any more."""


def is_bare_participle(name: str) -> bool:
    word = name.strip("_")
    if "_" in word or word in NOT_PARTICIPLES:
        return False
    return word in IRREGULAR_PARTICIPLES or (len(word) > 3 and word.endswith("ed"))


def test_no_function_is_named_by_a_bare_participle():
    named = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}"
        for path, tree in parse_package().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and is_bare_participle(node.name)
        and node.name not in PUBLIC_PARTICIPLES
    ]
    assert named == [], "name it by a verb or a noun"


def test_a_class_name_is_defined_once():
    places = defaultdict(list)
    for path, tree in parse_package().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    repeated = {name: where for name, where in places.items() if len(where) > 1 and name not in PUBLIC_TWINS}
    assert repeated == {}


def test_no_module_has_a_retired_name():
    names = Counter(part for path in PACKAGE.rglob("*.py") for part in path.relative_to(PACKAGE).with_suffix("").parts)
    assert RETIRED_MODULE_NAMES & names.keys() == set()
