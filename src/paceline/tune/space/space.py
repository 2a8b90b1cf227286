"""A search space: draws configurations by number, or assembles them from a searcher's picks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from paceline._core.arguments import bad_value, check_int
from paceline.tune.space import space_codec as codec
from paceline.tune.space import tree
from paceline.tune.space.domains import Categorical, Domain, Grid, KeyedRandom
from paceline.tune.space.sample_spec import ConfigFiller, PendingValue
from paceline.tune.space.tree import DrawnNode, FixedNode, FunctionNode, GroupNode, Path, Point, SpaceParameter

Pick = Callable[[SpaceParameter], Any]
_NO_POINT = Point({}, {})


class Space:
    """A search space, checked on construction. `param_space` is not changed, and must not be changed afterwards.

    Every draw is a function of the space, a number and a seed: it does not depend on the process, its hash seed, or
    other draws. Adding a parameter to the space does not change what is drawn for the others.
    """

    def __init__(self, param_space: Mapping[Any, Any] | Domain | None = None) -> None:
        root: Any = {} if param_space is None else param_space
        if isinstance(root, Mapping) and type(root) is not dict:
            root = dict(root)  # A configuration is a dict, whatever kind of mapping the parameters are in.
        self._tree = tree.build_tree(root)
        _check_root(self._tree, param_space)

    @property
    def num_grid(self) -> int:
        """How many combinations of `grid_search` values there are; 1 without any."""
        return self.num_grid_at(_NO_POINT)

    def num_grid_at(self, point: Point) -> int:
        """How many combinations a point leaves open."""
        return tree.count_grid(self._tree, point.picks)

    def draw(self, number: int, seed: int) -> dict[str, Any]:
        """Return the configuration of a trial by its number, from 0: the next grid combination, and random values."""
        check_int("number", number, at_least=0)
        check_int("seed", seed)
        return self.draw_combination(number % self.num_grid, ("trial", number), seed)

    def draw_combination(
        self, grid: int, name: tuple[int | str, ...], seed: int, point: Point = _NO_POINT
    ) -> dict[str, Any]:
        """Return grid combination number `grid` with random values from `name` and `seed`; `point` has fixed values."""
        picked: dict[Path, Any] = {**point.picks, **dict(tree.iter_grid_options(self._tree, grid, point.picks))}

        def pick_or_draw(parameter: SpaceParameter) -> Any:
            if parameter.path in picked or isinstance(parameter.domain, Grid):  # A grid is never drawn at random.
                return picked[parameter.path]
            return parameter.domain.pick(KeyedRandom(seed, *name, parameter.key))

        return self._assemble_config(pick_or_draw, (seed, *name), point.function_values)

    def domains(self) -> dict[Path, SpaceParameter]:
        """All domains, by path and in order, including those inside options."""
        return {**self._parameters}

    def assemble_config(
        self, pick: Pick, number: int = 0, seed: int = 0, function_values: Mapping[Path, Any] | None = None
    ) -> dict[str, Any]:
        """Return the configuration of what `pick` returns for each parameter: a number or an option index.

        `number` and `seed` are for `sample_from` functions; `function_values` are as in a `Point`.
        """

        def pick_checked(parameter: SpaceParameter) -> Any:
            picked = pick(parameter)
            if not parameter.domain.contains(picked):
                expected = "the index of an option of" if isinstance(parameter.domain, Categorical) else "in"
                raise bad_value(tree.format_path(parameter.path), f"{expected} {parameter.domain}", picked)
            return parameter.domain.nearest(picked)

        return self._assemble_config(pick_checked, (seed, "trial", number), function_values or {})

    def parse_point(self, config: Mapping[str, Any], name: str = "point") -> Point:
        """Return what a full or partial configuration sets. Raises `ValueError` for what is not in the space."""
        return tree.match_config(self._tree, config, name)

    def encode_config(self, config: Mapping[str, Any]) -> Any:
        """Encode a configuration in plain form, with objects as paths in this space."""
        return codec.encode_config(dict(config), self._find)

    def decode_config(self, plain: Any) -> dict[str, Any]:
        """Decode the result of `encode_config`. Raises `ValueError` for an object that is not in this space."""
        return codec.decode_config(plain, self._objects.__getitem__)  # type: ignore[no-any-return]

    @property
    def keys(self) -> tuple[Any, ...]:
        """The names of the parameters; none if the whole space is a choice."""
        return self._tree.keys if isinstance(self._tree, GroupNode) else ()

    @property
    def fixed_objects(self) -> dict[str, Any]:
        """The values that are neither numbers nor texts nor drawn, options included, by their paths."""
        return {tree.format_path(path): value for path, value in self._objects.items()}

    def describe(self) -> Any:
        """Describe the space in plain form; objects and functions only by name."""
        return codec.describe_node(self._tree)

    def find_differences(self, described_before: Any) -> list[str]:
        """List what differs from an earlier description, one line each; objects are compared only by name."""
        return codec.find_differences(described_before, self.describe())

    def _assemble_config(
        self, pick: Pick, key: tuple[int | str, ...], function_values: Mapping[Path, Any]
    ) -> dict[str, Any]:
        config = self._build_node(self._tree, pick, function_values)
        if self._has_functions:
            config = ConfigFiller(config, key, self._check_storable).unwrap_value(config)
        assert isinstance(config, dict)
        return config

    def _build_node(self, node: tree.SpaceNode, pick: Pick, function_values: Mapping[Path, Any]) -> Any:
        match node:
            case FixedNode():
                return node.value
            case GroupNode():
                return node.build_container([self._build_node(child, pick, function_values) for child in node.children])
            case FunctionNode():
                return function_values[node.path] if node.path in function_values else PendingValue(node)
            case DrawnNode():
                picked = pick(self._parameters[node.path])
                return self._build_node(node.options[picked], pick, function_values) if node.options else picked

    def _check_storable(self, value: Any, node: FunctionNode) -> None:
        """Refuse a value that the journal cannot store before it is used: a search resumes from its journal."""
        lost = codec.find_lost_objects(codec.encode_config(value, self._find))
        if lost:
            raise ValueError(
                f"the sample_from function of {tree.format_path(node.path)} must return a plain value or an object of "
                f"param_space, got an object of {', '.join(lost)}, which cannot be stored\n\n"
                "hint: return numbers or a name and make the object in the trial, or let tune.choice choose among "
                "objects; an array is plain as x.tolist()"
            )

    @cached_property
    def _parameters(self) -> Mapping[Path, SpaceParameter]:
        nodes = [node for node in tree.iter_nodes(self._tree) if isinstance(node, DrawnNode)]
        parameters = [SpaceParameter(node.path, node.domain, node.condition, node.key) for node in nodes]
        names = _parameter_names(parameters)
        return {parameter.path: replace(parameter, name=names[parameter.path]) for parameter in parameters}

    @cached_property
    def _has_functions(self) -> bool:
        return any(isinstance(node, FunctionNode) for node in tree.iter_nodes(self._tree))

    @cached_property
    def _objects(self) -> dict[Path, Any]:
        fixed = (node for node in tree.iter_nodes(self._tree) if isinstance(node, FixedNode))
        return {node.path: node.value for node in fixed if type(node.value) not in codec.SCALARS}

    @cached_property
    def _paths_by_id(self) -> dict[int, Path]:
        # If an object occurs several times, the first path wins, as in the search by equality.
        return {id(value): path for path, value in reversed(self._objects.items())}

    def _find(self, value: Any) -> Path | None:
        if id(value) in self._paths_by_id:
            return self._paths_by_id[id(value)]
        # A copy, such as one that passed through another process.
        alike = ((path, other) for path, other in self._objects.items() if type(other) is type(value))
        return next((path for path, other in alike if tree.is_same_value(other, value)), None)


def _check_root(root: tree.SpaceNode, param_space: Any) -> None:
    match root:
        case GroupNode(kind="dict"):
            return
        case DrawnNode(domain=Categorical(), options=options):
            for option in options:
                _check_root(option, getattr(option, "value", param_space))
            return
    raise bad_value("param_space", "a dict of parameters", param_space, "use {'lr': tune.loguniform(1e-4, 1e-1)}")


def _parameter_names(parameters: list[SpaceParameter]) -> dict[Path, str]:
    """Use short names if they are unique, else names with the options on the way, else full paths."""
    short = {parameter.path: "/".join(map(str, parameter.config_keys)) or "param_space" for parameter in parameters}
    long = {
        parameter.path: "/".join(f"option {s.index}" if isinstance(s, tree.Option) else str(s) for s in parameter.path)
        for parameter in parameters
    }
    num_short, num_long = Counter(short.values()), Counter(long.values())
    names: dict[Path, str] = {}
    for parameter in parameters:
        name = short[parameter.path]
        if num_short[name] > 1:
            name = long[parameter.path] if num_long[long[parameter.path]] == 1 else tree.format_path(parameter.path)
        names[parameter.path] = name
    return names
