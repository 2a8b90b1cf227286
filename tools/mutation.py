"""Plant small bugs in the product, one at a time, and count how many of them the tests notice: `make mutation`.

Mutations come from cosmic-ray. Only a seeded sample is tried, and each mutant is judged by the tests that execute its
line, the quickest first; where none does in its own process, as for defaults of fields, by those that execute its
file or import its module. It counts as noticed if a test fails twice. Left out is what no test can see: annotations,
decorators, sizes and timeouts, the bare `*` of a signature, and keyword arguments such as `frozen` and `daemon`.
"""

import argparse
import ast
import dataclasses
import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

TARGETS: dict[str, tuple[list[str], list[str]]] = {
    "_control": (
        ["_control"],
        ["_control", "properties", "contracts", "testing", "control", "train/test_validation.py"],
    ),
    "_storage": (
        ["_storage"],
        [
            *("_storage", "contracts", "properties", "control", "train/test_store_runs.py"),
            *("train/torch/test_torch_checkpoint.py", "cli/test_checkpoints_command.py"),
        ],
    ),
    "data": (
        [
            "data/exec/schedule.py",
            "data/exec/block_ledger.py",
            "data/exec/process_pools.py",
            "data/planning/optimizer.py",
            "data/order/shuffle.py",
            "data/order/batch_cutter.py",
            "data/order/sharding.py",
        ],
        ["data", "properties"],
    ),
    "tune": (
        ["tune/schedulers", "tune/stopper.py", "tune/driver/search_state.py"],
        ["tune"],
    ),
}
"""What is mutated, below src/paceline, and the tests that are to notice, below tests."""

OPERATORS = (
    "AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "NumberReplacer", "ZeroIterationForLoop",
    "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub",
    "ReplaceComparisonOperator_Eq_NotEq", "ReplaceComparisonOperator_NotEq_Eq",
    "ReplaceComparisonOperator_Lt_LtE", "ReplaceComparisonOperator_LtE_Lt", "ReplaceComparisonOperator_Gt_GtE",
    "ReplaceComparisonOperator_GtE_Gt", "ReplaceComparisonOperator_Is_IsNot", "ReplaceComparisonOperator_IsNot_Is",
    "ReplaceBinaryOperator_Add_Sub", "ReplaceBinaryOperator_Sub_Add", "ReplaceBinaryOperator_Mul_Div",
    "ReplaceBinaryOperator_Div_Mul", "ReplaceBinaryOperator_FloorDiv_Mul", "ReplaceBinaryOperator_Mod_Add",
    "ReplaceBinaryOperator_BitOr_BitAnd", "ReplaceBinaryOperator_BitAnd_BitOr",
)  # fmt: skip
"""One replacement for each kind of place: further ones mostly repeat the first."""

INVISIBLE = {"frozen", "gc", "daemon", "non_blocking"}
"""Keyword arguments, of classes and calls, that no right program can notice: they guard, or save time."""

MAX_TESTS_S = 60.0
"""How long the tests of one mutant may take; slower ones are left out, so the score is a lower bound."""
MIN_TIMEOUT_S = 60.0
"""How long any single test may take, at least."""
MARKER = "not chaos and not ray and not fresh"
PLUGIN = """
import json, os, time
import coverage
import pytest

seconds = {}

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    coverage.Coverage.current().switch_context(item.nodeid)
    began = time.monotonic()
    yield
    seconds[item.nodeid] = time.monotonic() - began
    coverage.Coverage.current().switch_context("")

def pytest_sessionfinish():
    with open(os.environ["MUTATION_SECONDS"], "w") as file:
        json.dump(seconds, file)
"""


@dataclasses.dataclass(frozen=True)
class Mutant:
    path: str
    operator: str
    occurrence: int
    line: int


def copy_tree(to: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def find_mutants(path: Path, name: str) -> Iterator[Mutant]:
    import cosmic_ray.plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    source = path.read_text()
    tree, outside = get_ast(source), _lines_to_leave_out(source)
    for operator_name in OPERATORS:
        operator = cosmic_ray.plugins.get_operator(f"core/{operator_name}")()
        occurrence = 0
        for node in ast_nodes(tree):
            is_bare_star = node.type == "operator" and node.parent.type in ("parameters", "param")
            for (line, column), _ in operator.mutation_positions(node):
                if not is_bare_star and not any(begin <= (line, column) <= end for begin, end in outside):
                    yield Mutant(name, operator_name, occurrence, line)
                occurrence += 1


def _lines_to_leave_out(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Annotations and blocks for type checkers; decorators; constants such as sizes and timeouts; `INVISIBLE`."""
    spans = []
    tree = ast.parse(source)
    constants = [
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).strip("_").isupper()
    ]
    for node in [*ast.walk(tree), *constants]:
        left_out: list[Any] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        left_out += getattr(node, "decorator_list", [])
        left_out += [node] if node in constants else []
        is_zip = isinstance(node, ast.Call) and ast.unparse(node.func) == "zip"  # zip(..., strict=True) only guards.
        left_out += [keyword for keyword in getattr(node, "keywords", []) if is_zip or keyword.arg in INVISIBLE]
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            left_out.append(node)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.BitOr):
            left_out += [node] if ast.unparse(node.targets[0])[:1].isupper() else []  # a union of types, by its name
        spans += [
            ((each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset))
            for each in left_out
            if isinstance(each, ast.AST) and hasattr(each, "lineno")
        ]
    return spans


def measure_coverage(tree: Path, sources: list[str], tests: list[str]) -> tuple[dict[str, dict[int, list[str]]], dict]:
    """For each source file and line the tests that execute it, and the seconds that each test takes."""
    import coverage

    (tree / "mutation_plugin.py").write_text(PLUGIN)
    (tree / ".coveragerc").write_text("[run]\ncore = ctrace\nsource =\n" + "".join(f"  {tree}/{s}\n" for s in sources))
    environ = {**os.environ, "PYTHONPATH": f"{tree}/src:{tree}", "MUTATION_SECONDS": f"{tree}/seconds.json"}
    command = [sys.executable, "-m", "coverage", "run", "-m", "pytest", "-q", "-p", "mutation_plugin", "-m", MARKER]
    subprocess.run([*command, *tests], cwd=tree, env=environ, check=True)
    data = coverage.CoverageData(str(tree / ".coverage"))
    data.read()
    covering = {
        os.path.relpath(file, tree): {
            line: [context for context in contexts if context]
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    return covering, json.loads((tree / "seconds.json").read_text())


def judge(mutant: Mutant, tree: Path, tests: list[str], limit_s: float) -> str:
    """Run the tests on the mutant in a fork of this process, which has their libraries imported already."""
    import cosmic_ray.plugins
    from cosmic_ray.mutating import mutate_code

    path = tree / mutant.path
    original = path.read_text()
    operator = cosmic_ray.plugins.get_operator(f"core/{mutant.operator}")()
    mutated = mutate_code(original, operator, mutant.occurrence)
    if mutated is None or mutated == original:
        return "same"
    try:
        ast.parse(mutated)
    except SyntaxError:
        return "same"
    path.write_text(mutated)
    try:
        return "killed" if _is_noticed(tree, tests, limit_s) else "survived"
    finally:
        path.write_text(original)


def _is_noticed(tree: Path, tests: list[str], limit_s: float) -> bool:
    """Whether a test fails, and fails again: on a busy machine one may fail by itself."""
    if run_tests(tree, tests, limit_s) == 0:
        return False
    failed = find_failed_tests((tree / "output").read_text(), tests)
    if failed and run_tests(tree, failed, limit_s) == 0:
        return run_tests(tree, tests, limit_s) != 0
    return True


def find_failed_tests(output: str, tests: list[str]) -> list[str]:
    """The tests that pytest's summary names; ids may have spaces."""
    lines = [line.partition(" ")[2] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return [test for test in tests if any(line == test or line.startswith(f"{test} - ") for line in lines)]


def run_tests(tree: Path, tests: list[str], limit_s: float) -> int:
    """Run tests in this order, in a fork of this process, which has imported their libraries. 0 if all pass."""
    pid = os.fork()
    if pid == 0:
        _run_pytest(tree, tests)
    return _wait(pid, limit_s)


class _ChosenTests:
    """A pytest plugin that keeps the chosen tests, in their order: ids with spaces cannot be arguments.

    A test that a mutant blocks fails after ten times as long as it takes, and not only at the timeout of the suite.
    """

    def __init__(self, tests: list[str], seconds: dict[str, float]) -> None:
        self.order = {test: number for number, test in enumerate(tests)}
        self.seconds = seconds

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        import pytest

        items[:] = sorted((item for item in items if item.nodeid in self.order), key=lambda x: self.order[x.nodeid])
        for item in items:
            timeout_s = max(MIN_TIMEOUT_S, 10 * self.seconds[item.nodeid])
            item.add_marker(pytest.mark.timeout(timeout_s), append=False)


def _run_pytest(tree: Path, tests: list[str]) -> None:
    import pytest

    os.setsid()
    os.chdir(tree)
    sys.path[:0] = [f"{tree}/src"]
    os.environ["PYTHONPATH"] = f"{tree}/src"
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    output = os.open(tree / "output", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 3
    try:
        files = sorted({test.partition("::")[0] for test in tests})
        arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", MARKER, *files]
        seconds = json.loads((tree / "seconds.json").read_text())
        status = int(pytest.main(arguments, plugins=[_ChosenTests(tests, seconds)]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(pid: int, limit_s: float) -> int:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -1


def choose_tests(
    covering: dict[int, list[str]], line: int, seconds: dict[str, float], importing: set[str]
) -> list[str]:
    """The tests that execute the line, else (a default, or code of another process) those that execute its file.

    A line that is executed at import only belongs to no test: those in files that import the module may see it, too.
    """
    candidates = set(covering.get(line, []))
    if not candidates:
        candidates = {test for tests in covering.values() for test in tests}
        candidates |= {test for test in seconds if test.partition("::")[0] in importing}
    candidates &= seconds.keys()
    # The models of whole components are slow, and see the most.
    models = {test for test in candidates if test.startswith("tests/properties/")}
    candidates -= models
    chosen, total = [], 0.0
    for test in sorted(candidates, key=lambda test: seconds[test]):
        total += seconds[test]
        if chosen and total > MAX_TESTS_S:
            break
        chosen.append(test)
    return chosen + sorted(models, key=lambda test: seconds[test])


def find_importing_files(tree: Path, name: str, seconds: dict[str, float]) -> set[str]:
    """The files of these tests that import the module of a source file by its name."""
    package, _, module = name.removeprefix("src/").removesuffix(".py").replace("/", ".").rpartition(".")
    pattern = re.compile(rf"from {package}\.{module} import |from {package} import .*\b{module}\b")
    files = {test.partition("::")[0] for test in seconds}
    return {file for file in files if pattern.search((tree / file).read_text())}


def run_target(name: str, sample: int, seed: int) -> dict[str, Any]:
    sources, tests = TARGETS[name]
    with tempfile.TemporaryDirectory(prefix="paceline-mutation-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        covering, seconds = measure_coverage(
            tree, [f"src/paceline/{source}" for source in sources], [f"tests/{test}" for test in tests]
        )
        roots = [tree / "src/paceline" / source for source in sources]
        files = [path for root in roots for path in ([root] if root.suffix else sorted(root.rglob("*.py")))]
        mutants = [mutant for path in files for mutant in find_mutants(path, str(path.relative_to(tree)))]
        chosen = random.Random(seed).sample(mutants, min(sample, len(mutants)))
        for library in ("msgspec", "numpy", "psutil", "pyarrow", "pytest", "torch"):
            importlib.import_module(library)  # Once, for all forks.
        quickest = sorted(seconds, key=lambda test: seconds[test])[:20]
        if run_tests(tree, quickest, 120) != 0:
            raise SystemExit(f"the tests fail without a mutant:\n{(tree / 'output').read_text()[-3000:]}")
        verdicts: Counter[str] = Counter()
        survivors = []
        for number, mutant in enumerate(chosen, 1):
            importing = find_importing_files(tree, mutant.path, seconds)
            tests_of_mutant = choose_tests(covering.get(mutant.path, {}), mutant.line, seconds, importing)
            limit_s = 60 + 5 * sum(seconds[test] for test in tests_of_mutant)
            verdict = judge(mutant, tree, tests_of_mutant, limit_s) if tests_of_mutant else "not covered"
            verdicts[verdict] += 1
            if verdict in ("survived", "not covered"):
                survivors.append({**dataclasses.asdict(mutant), "verdict": verdict})
                print(f"{verdict}: {mutant.path}:{mutant.line} {mutant.operator} #{mutant.occurrence}", flush=True)
            if number % 20 == 0:
                print(f"{name}: {number} of {len(chosen)}: {dict(verdicts)}", flush=True)
    tried = verdicts["killed"] + verdicts["survived"] + verdicts["not covered"]
    return {
        "target": name,
        "mutants": len(mutants),
        "tried": tried,
        "killed": verdicts["killed"],
        "score": verdicts["killed"] / tried if tried else None,
        "survivors": survivors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="*", choices=[*TARGETS, []], help="what to mutate (all)")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants of each target to try (200)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (0)")
    parser.add_argument("--output", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args()
    results = [run_target(name, options.sample, options.seed) for name in options.target or TARGETS]
    for result in results:
        print(
            f"{result['target']}: {result['killed']} of {result['tried']} killed ({result['score']:.0%}), "
            f"sampled from {result['mutants']}"
        )
    if options.output:
        options.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
