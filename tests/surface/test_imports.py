"""The direction of imports, held by reading the source: who may know of whom.

`violations` takes sources by path, so that each rule is also shown to catch a planted breach. Imports inside
functions and for type checkers count like all others; only cycles inside a package are a matter of the module level.
"""

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

import pytest

from source_trees import PACKAGE, parse_source

Sources = Mapping[str, str]

OPTIONAL = {
    "ray": ("_engine/ray/", "data/exec/ray/"),
    "torch": ("train/torch/", "train/lightning/", "train/huggingface/", "data/batches/torch.py"),
    "tensorflow": ("train/tensorflow/", "data/batches/tensorflow.py", "data/sources/frameworks.py"),
    "tf_keras": ("train/tensorflow/",),
    "keras": ("train/tensorflow/",),
    "jax": ("train/jax/", "data/batches/jax.py"),
    "jaxlib": ("train/jax/",),
    "orbax": ("train/jax/",),
    "xgboost": ("train/xgboost/",),
    "lightgbm": ("train/lightgbm/",),
    "lightning": ("train/lightning/",),
    "pytorch_lightning": ("train/lightning/",),
    "transformers": ("train/huggingface/",),
    "mlflow": ("train/loggers/",),
    "wandb": ("train/loggers/",),
    "tensorboard": ("train/loggers/",),
    "accelerate": ("train/huggingface/",),
    "deepspeed": ("train/lightning/",),
    "optuna": ("tune/search/optuna/", "tune/importance.py"),
    "ax": ("tune/search/ax.py",),
    "bayes_opt": ("tune/search/bayesopt.py",),
    "hebo": ("tune/search/hebo.py",),
    "hpbandster": ("tune/search/bohb.py",),
    "hyperopt": ("tune/search/hyperopt.py",),
    "nevergrad": ("tune/search/nevergrad.py",),
    "zoopt": ("tune/search/zoopt.py",),
    "matplotlib": ("tune/display/plot_drawing.py",),
    "IPython": ("train/display/screen.py",),
    "libcst": ("_commands/migrate.py", "_commands/migration/"),
    "starlette": ("_dashboard/app.py", "_dashboard/serve.py"),
    "uvicorn": ("_dashboard/serve.py",),
}
"""Who alone may import it. Lightning and the Hugging Face trainer are themselves built on torch."""

LAYERS = {
    "_core": (),
    "_storage": ("_core",),
    "_engine": ("_core", "_storage"),
    "_control": ("_core", "_storage", "_engine"),
    "_view": ("_core", "_storage", "_engine", "_control"),
    "data": ("_core", "_storage", "_engine"),
    "_worker": ("_core", "_storage", "_engine", "data"),
    "train": ("_core", "_storage", "_engine", "_control", "_view", "data", "_worker"),
    "tune": ("_core", "_storage", "_engine", "_control", "_view", "_worker", "train"),
    "air": ("_core", "_engine", "_worker", "train"),
    "testing": ("_core", "_storage", "_engine", "_control", "data", "_worker", "train"),
    "_dashboard": ("_core", "_storage", "_control", "_view"),
    "_commands": ("_core", "_storage", "_engine", "_control", "_view", "train", "tune", "_dashboard"),
    "cli": ("_core", "_commands"),
    "__main__": ("cli",),
    "__init__": ("_core", "_engine", "data", "train", "tune", "air", "testing"),
}
"""What each package imports of the others, inside functions or not. It names only packages above it, so no cycle can
be hidden anywhere. `import paceline` is nobody's import: it was run before, and is asked for its version and path."""

_TRAINING = ("_control", "_engine", "_storage", "_worker", "data", "train")
NEVER = {
    "data/planning/plan.py": ("data.exec", "_engine"),
    **dict.fromkeys(
        (
            "_commands/cli_args.py",
            "_commands/diff.py",
            "_commands/logs.py",
            "_commands/ls.py",
            "_commands/metrics.py",
            "_commands/run_sections.py",
            "_commands/show.py",
            "_commands/cli_output.py",
        ),
        ("_engine", "train"),
    ),
    **dict.fromkeys(
        ("tune/results/parameter_columns.py", "tune/importance.py", "tune/plots.py", "tune/display/plot_drawing.py"),
        (*_TRAINING, "tune.driver"),
    ),
    **dict.fromkeys(("_view/formatting.py", "_view/pace.py"), ("_control", "_core", "_engine", "_storage")),
    "tune/results/scopes.py": (*_TRAINING, "tune"),
    "tune/driver/resource_ledger.py": _TRAINING,
    "tune/space": (*_TRAINING, "tune.driver", "tune.search"),
    "tune/search": (*_TRAINING, "tune.driver"),
}
"""What single modules and folders never import, though their package may."""

ONLY = {("_control", "_engine"): ("_engine.base", "_engine.messages")}
"""What alone a part imports of another part."""

EXCEPTIONS = {("_storage/state.py", "torch"): "tensors in a saved state are torch's own, where there are any"}
"""Imports that break a rule for a reason. They hold inside a function only, and for that file or folder."""

SETTINGS = "_core/settings.py"
"""The only reader of environment variables."""

OTHERS_VARIABLES = {
    ("_engine/local/", "all variables"): "workers get a copy of the driver's environment, which is not looked at",
    ("_engine/ray/authentication.py", "RAY_AUTH_MODE"): "Ray's own: what the user has set stays",
    ("_engine/ray/authentication.py", "RAY_AUTH_TOKEN"): "Ray's own: the token for a cluster",
    ("_engine/ray/authentication.py", "RAY_AUTH_TOKEN_PATH"): "Ray's own: the token for a cluster",
    ("_engine/local/devices.py", "CUDA_VISIBLE_DEVICES"): "CUDA's own: which GPUs may be given to workers",
    ("_engine/local/devices.py", "OMP_NUM_THREADS"): "OpenMP's own: what the user has set stays",
    ("_storage/address.py", "all variables"): "the clouds' own: where a store is, and for whom",
    ("train/torch/process_group.py", "GLOO_SOCKET_IFNAME"): "gloo's own: what the user has set stays",
    ("train/tensorflow/quiet_import.py", "TF_CPP_MIN_LOG_LEVEL"): "TensorFlow's own: what the user has set stays",
    ("train/tensorflow/config.py", "no_grpc_proxy"): "gRPC's own: what the user has set stays",
    ("train/tensorflow/config.py", "no_proxy"): "of all clients of the web: what the user has set stays",
    ("train/tensorflow/config.py", "TF_FORCE_GPU_ALLOW_GROWTH"): "TensorFlow's own: what the user has set stays",
    ("train/lightning/strategy.py", "MASTER_ADDR"): "torch's own: the address of its process group, for Lightning",
    ("train/lightning/strategy.py", "MASTER_PORT"): "torch's own: the address of its process group, for Lightning",
}
"""What else may be read, for a reason: variables that belong to others."""

RAY_PRIVATE = "_engine/ray/ray_private.py"
"""The only module with names that Ray does not promise to keep."""
_RAYS_OWN = re.compile(
    r"(?<![\w.])(?:self\._?)?ray\.(?:\w+\.)*(?:_[a-z]\w*|experimental|autoscaler|cluster_utils|core|dashboard)\b"
    r"|(?<![\w.])ray\.util\.state\b|\b_(?:internal_kv|raylet)_?\w*"
)

DYNAMIC = {"importlib.import_module", "import_module", "__import__"}
READS = {"environ", "environb", "getenv", "getenvb"}
WRITES = {"update", "clear", "pop", "setdefault"}
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "misc"}


@dataclasses.dataclass(frozen=True)
class Import:
    path: str
    line: int
    target: str
    in_function: bool
    only_typing: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.target}"


def violations(sources: Sources) -> list[str]:
    """What breaks a rule, one line each. Paths are relative to the package: `_core/system.py`."""
    trees = {path: parse_source(source) for path, source in sources.items()}
    modules = {_module(path) for path in sources}
    imports = [each for path, tree in trees.items() for each in _imports(path, tree, modules, sources[path])]
    return [
        *(f"{each}: {rule}" for each in imports for rule in _broken_rules(each) if not _excepted(each)),
        *(f"{path}: LAYERS does not have {_package_of(path)}" for path in sources if _package_of(path) not in LAYERS),
        *(line for path, tree in trees.items() if "import paceline" in sources[path] for line in _reads(path, tree)),
        *_cycles(modules, imports),
        *(f"{path}: {name} names nothing" for path in sources for name in _parts(path) & VAGUE_NAMES),
        *(line for path in sources if path != RAY_PRIVATE for line in _ray_names(path, sources[path])),
        *(line for path, tree in trees.items() if "env" in sources[path] for line in _environment_reads(path, tree)),
    ]


def _ray_names(path: str, source: str) -> Iterator[str]:
    """In the text, since a name may be looked up by a string as well."""
    for number, line in enumerate(source.splitlines(), 1):
        if found := _RAYS_OWN.search(line):
            yield f"{path}:{number} uses {found[0]}: only {RAY_PRIVATE} does"


def _broken_rules(each: Import) -> Iterator[str]:
    top = each.target.partition(".")[0]
    if not _within(each.target, "paceline"):
        if top in OPTIONAL and not each.path.startswith(OPTIONAL[top]):
            yield f"{top} is imported only under {', '.join(OPTIONAL[top])}"
        return
    target = each.target.removeprefix("paceline").removeprefix(".")
    package, imported = _package_of(each.path), target.partition(".")[0]
    if imported and imported not in (package, *LAYERS.get(package, ())):
        yield f"{package} imports only {', '.join(LAYERS.get(package, ())) or 'itself'}"
        return
    for part, names in NEVER.items():
        for name in names:
            if _belongs(each.path, part) and _within(target, name):
                yield f"{part} imports nothing of {name}"
    for (part, other), allowed in ONLY.items():
        concerned = _belongs(each.path, part) and _within(target, other)
        if concerned and not any(_within(target, name) for name in allowed):
            yield f"of {other}, {part} imports only {' and '.join(allowed)}"


def _excepted(each: Import) -> bool:
    target = each.target.removeprefix("paceline.")
    return each.in_function and any(each.path.startswith(path) and _within(target, name) for path, name in EXCEPTIONS)


def _within(target: str, name: str) -> bool:
    return not name or target == name or target.startswith(f"{name}.")


def _belongs(path: str, part: str) -> bool:
    return path == part or path.startswith(f"{part}/")


def _package_of(path: str) -> str:
    return PurePosixPath(path).with_suffix("").parts[0]


def _parts(path: str) -> set[str]:
    return {*PurePosixPath(path).with_suffix("").parts}


def _module(path: str) -> str:
    parts = PurePosixPath("paceline", path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: str, tree: ast.Module, modules: set[str], source: str) -> Iterator[Import]:
    # Only a source that imports by a name has imports in expressions, which are many.
    is_dynamic = any(name in source for name in DYNAMIC)
    kinds = ast.AST if is_dynamic else (ast.stmt, ast.excepthandler, ast.match_case)

    def walk(node: ast.AST, in_function: bool, only_typing: bool) -> Iterator[Import]:
        for target in _targets(path, node, modules):
            yield Import(path, node.lineno, target, in_function, only_typing)
        in_function |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for child in filter(lambda child: isinstance(child, kinds), ast.iter_child_nodes(node)):
            yield from walk(child, in_function, only_typing or (typing and child in node.body))

    return walk(tree, False, False)


def _targets(path: str, node: ast.AST, modules: set[str]) -> list[str]:
    match node:
        case ast.Import(names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module, names, level):
            base = module or ""
            if level:
                parts = PurePosixPath("paceline", path).parts[:-level]
                base = ".".join([*parts, *([module] if module else [])])
            return [full if (full := f"{base}.{alias.name}") in modules else base for alias in names]
        case ast.Call(func, [ast.Constant(str(name)), *_]) if ast.unparse(func) in DYNAMIC:
            return [name]
    return []


def _reads(path: str, tree: ast.Module) -> Iterator[str]:
    """Parts of the package that are reached through `import paceline`."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("paceline"), name) if not name.startswith("__"):
                yield f"{path}:{node.lineno} reads paceline.{name}: import that module"


def _cycles(modules: set[str], imports: list[Import]) -> list[str]:
    """The groups of modules that reach each other while they are being imported."""
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for each in imports:
        if not each.in_function and not each.only_typing:
            graph[_module(each.path)] |= _run_by(_module(each.path), each.target) & modules
    reached = {module: _reach(graph, module) for module in modules}
    groups = {tuple(sorted(other for other in reached[module] if module in reached[other])) for module in modules}
    return [f"import cycle: {' <-> '.join(group)}" for group in sorted(groups) if group]


def _run_by(importer: str, target: str) -> set[str]:
    """The modules that an import runs: the target, and the packages around it that the importer is not in."""
    parts = target.split(".")
    packages = {".".join(parts[:end]) for end in range(1, len(parts))}
    return {target} | {package for package in packages if not _within(importer, package)}


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    ahead = [*graph[start]]
    while ahead:
        if (module := ahead.pop()) not in reached:
            reached.add(module)
            ahead.extend(graph[module])
    return reached


def _environment_reads(path: str, tree: ast.Module) -> Iterator[str]:
    if path == SETTINGS:
        return
    uses: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os" and _names(node) & READS:
            yield f"{path}:{node.lineno} imports {', '.join(_names(node) & READS)}: name it as os.environ"
        # The statement is met before the expressions in it, and knows best what becomes of them.
        for mention, use in _environment_uses(node):
            uses.setdefault(id(mention), use)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in READS and ast.unparse(node) == f"os.{node.attr}":
            use = uses.get(id(node), "the environment")
            is_others = any(path.startswith(where) and use == variable for where, variable in OTHERS_VARIABLES)
            if use != "set" and not is_others:
                yield f"{path}:{node.lineno} reads {use}: only {SETTINGS} does"


def _environment_uses(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """What a node does with an expression, should that be os.environ: the variable it reads, or that it sets one."""
    match node:
        case ast.Subscript(value, _, ast.Store() | ast.Del()) | ast.AugAssign(value):
            yield value, "set"
        case ast.Expr(ast.Call(ast.Attribute(value, method))) if method in WRITES:
            yield value, "set"
        case ast.Subscript(value, ast.Constant(str(name))):
            yield value, name
        case ast.Compare(ast.Constant(str(name)), [ast.In() | ast.NotIn()], [value]):
            yield value, name
        case ast.Dict(keys, values):
            yield from ((value, "all variables") for key, value in zip(keys, values, strict=True) if key is None)
        case ast.Call(ast.Name("dict"), [value]) | ast.Call(ast.Attribute(value, "copy"), []):
            yield value, "all variables"
        case ast.Call(func, [ast.Constant(str(name)), *_]):
            yield func, name
            if isinstance(func, ast.Attribute):
                yield func.value, name


def _names(node: ast.ImportFrom) -> set[str]:
    return {alias.name for alias in node.names}


def test_the_package_keeps_its_direction() -> None:
    broken = violations({path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")})
    assert not broken, "\n" + "\n".join(broken)


def test_the_rules_name_files_that_are_there() -> None:
    named = {
        SETTINGS,
        RAY_PRIVATE,
        *(path for paths in OPTIONAL.values() for path in paths),
        *NEVER,
        *(path for rule in (EXCEPTIONS, OTHERS_VARIABLES) for path, _ in rule),
    }
    named |= {layer if (PACKAGE / layer).is_dir() else f"{layer}.py" for layer in LAYERS}
    assert not [path for path in sorted(named) if not (PACKAGE / path).exists()]


def test_layers_name_only_layers_above_them() -> None:
    names = [*LAYERS]
    assert all({*below} <= {*names[: names.index(name)]} for name, below in LAYERS.items())


BREACHES = {
    "_core imports a public part lazily": {"_core/log.py": "def say():\n    from paceline.train import errors"},
    "_engine imports train by name": {"_engine/base.py": "importlib.import_module('paceline.train')"},
    "_worker imports _control": {"_worker/main.py": "if TYPE_CHECKING:\n    from paceline._control import run"},
    "_control names an engine": {"_control/controller.py": "from paceline._engine.local import LocalEngine"},
    "an excepted framework at the top": {"_storage/state.py": "import torch"},
    "a rule of one file": {"data/planning/plan.py": "from paceline.data.exec import local"},
    "a cycle of three": {
        "train/a.py": "from paceline.train.b import x",
        "train/b.py": "try:\n    from paceline.train import c\nexcept ImportError:\n    pass",
        "train/c.py": "class C:\n    from paceline.train.a import y",
    },
    "a cycle through a package's door": {
        "train/driver/__init__.py": "from paceline.train.driver.session import report",
        "train/driver/session.py": "from paceline.train.torch import current",
        "train/driver/errors.py": "",
        "train/torch.py": "from paceline.train.driver.errors import TrainingFailedError",
    },
    "half of a cycle hidden in a function": {
        "_engine/base.py": "from paceline._storage.files import Files",
        "_storage/files.py": "def write():\n    from paceline._engine import messages",
    },
    "a part reached through the package": {"_control/run.py": "import paceline\npaceline.train.Result"},
    "a package of no layer": {"_extras/x.py": ""},
    "a package named helpers": {"train/helpers/x.py": ""},
    "a private module of Ray": {"_engine/ray/nodes.py": "def read():\n    from ray._private import state"},
    "a private name of Ray in a string": {"train/config.py": "x = 'ray._private.worker'"},
    "a private name of Ray by attribute": {"_engine/ray/nodes.py": "self._ray.experimental.get()"},
    "a variable read by get": {"train/config.py": "import os\nx = os.environ.get('A')"},
    "a variable read where copies are made": {"_engine/local/engine.py": "import os\nx = os.environ['A']"},
}

PLACED = dict.fromkeys(("_engine/messages.py", "_engine/base.py", "_core/system.py", "_worker/main.py"), "")


@pytest.mark.parametrize("sources", BREACHES.values(), ids=BREACHES.keys())
def test_a_breach_is_found_once(sources: Sources) -> None:
    assert len(violations({**PLACED, **sources})) == 1
