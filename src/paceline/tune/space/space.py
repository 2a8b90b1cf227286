"""A search space: draws configurations by number, or assembles them from a searcher's picks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from paceline.tune.space import config_codec as codec
from paceline.tune.space.domains import Categorical, Domain, Grid
from paceline.tune.space.keyed_random import KeyedRandom
from paceline.tune.space.points import Point, is_same_value, match_config
from paceline.tune.space.sample_spec import ConfigFiller, PendingValue
from paceline.tune.space.space_description import describe_node, find_differences, rebuild_param_space
from paceline.tune.space.tree import (
    DrawnNode,
    FixedNode,
    FunctionNode,
    GroupNode,
    Option,
    Path,
    SpaceNode,
    SpaceParameter,
    build_tree,
    count_grid,
    format_path,
    iter_grid_options,
    iter_nodes,
)

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
        self._tree = build_tree(root)
        _check_root(self._tree, param_space)

    @property
    def num_grid(self) -> int:
        """How many combinations of `grid_search` values there are; 1 without any."""
        return self.num_grid_at(_NO_POINT)

    def num_grid_at(self, point: Point) -> int:
        """How many combinations a point leaves open."""
        return count_grid(self._tree, point.picks)

    def draw(self, number: int, seed: int) -> dict[str, Any]:
        """Return the configuration of a trial by its number, from 0: the next grid combination, and random values."""
        _check_whole("number", number, 0)
        _check_whole("seed", seed)
        return self.draw_combination(number % self.num_grid, ("trial", number), seed)

    def draw_combination(
        self, grid: int, name: tuple[int | str, ...], seed: int, point: Point = _NO_POINT
    ) -> dict[str, Any]:
        """Return grid combination number `grid` with random values from `name` and `seed`; `point` has fixed values."""
        picked: dict[Path, Any] = {**point.picks, **dict(iter_grid_options(self._tree, grid, point.picks))}

        def pick_or_draw(place: SpaceParameter) -> Any:
            if place.path in picked or isinstance(place.domain, Grid):  # A grid is never drawn at random.
                return picked[place.path]
            return place.domain.pick(KeyedRandom(seed, *name, self._keys[place.path]))

        return self._assemble_config(pick_or_draw, (seed, *name), point.function_values)

    def domains(self) -> dict[Path, SpaceParameter]:
        """All domains, by path and in order, including those inside options."""
        return {**self._parameters}

    def resolve_picks(self, picked: Mapping[Path, Any], number: int = 0, seed: int = 0) -> dict[str, Any]:
        """Return the configuration for these numbers and option indexes, by the paths of `domains()`.

        Fills in constants and the values of `sample_from` functions, with randomness from `number` and `seed`. Paths
        inside options that were not picked are not required, and ignored.
        """
        unknown = [path for path in picked if path not in self._parameters]
        if unknown:
            raise ValueError(f"there is nothing to pick at {', '.join(map(format_path, unknown))}")

        def look_up_pick(place: SpaceParameter) -> Any:
            if place.path not in picked:
                raise ValueError(f"nothing was picked for {format_path(place.path)}, which is {place.domain}")
            return picked[place.path]

        return self.assemble_config(look_up_pick, number, seed)

    def assemble_config(
        self, pick: Pick, number: int = 0, seed: int = 0, made: Mapping[Path, Any] | None = None
    ) -> dict[str, Any]:
        """Like `resolve_picks`, with a function that is called for each parameter, outer ones first.

        `made` has values, by path, that replace those of `sample_from` functions, like those of a `Point`.
        """

        def pick_checked(place: SpaceParameter) -> Any:
            picked = pick(place)
            if not place.domain.contains(picked):
                what = "the index of an option of" if isinstance(place.domain, Categorical) else "in"
                raise ValueError(f"{format_path(place.path)}: {picked!r} is not {what} {place.domain}")
            return place.domain.nearest(picked)

        return self._assemble_config(pick_checked, (seed, "trial", number), made or {})

    def parse_point(self, config: Mapping[str, Any], name: str = "point") -> Point:
        """Return what a full or partial configuration sets. Raises `ValueError` for what is not in the space."""
        return match_config(self._tree, config, name)

    def encode_config(self, config: Mapping[str, Any]) -> Any:
        """Encode a configuration in plain form, with objects as paths in this space."""
        return codec.encode_config(dict(config), self._find)

    def decode_config(self, plain: Any) -> dict[str, Any]:
        """Decode the result of `encode_config`, with the objects of this space.

        Raises `ValueError` for an object that is not in this space, such as one made by a function.
        """
        restored: dict[str, Any] = codec.decode_config(plain, self._objects.__getitem__)
        return restored

    def describe(self) -> Any:
        """Describe the space in plain form; objects and functions only by name."""
        return describe_node(self._tree)

    @classmethod
    def from_description(cls, plain: Any) -> Space:
        """Rebuild a space from its description. Raises `ValueError` for objects or functions, which are not stored."""
        return cls(rebuild_param_space(plain))

    def find_differences(self, described_before: Any) -> list[str]:
        """List what differs from an earlier description, one line each; objects are compared only by name."""
        return find_differences(described_before, self.describe())

    def _assemble_config(self, pick: Pick, key: tuple[int | str, ...], made: Mapping[Path, Any]) -> dict[str, Any]:
        config = self._build_node(self._tree, pick, made)
        if self._has_functions:
            config = ConfigFiller(config, key, self._check_storable).fill_config()
        assert isinstance(config, dict)
        return config

    def _build_node(self, node: SpaceNode, pick: Pick, made: Mapping[Path, Any]) -> Any:
        match node:
            case FixedNode():
                return node.value
            case GroupNode():
                return node.build_container([self._build_node(child, pick, made) for child in node.children])
            case FunctionNode():
                return made[node.path] if node.path in made else PendingValue(node)
            case DrawnNode():
                picked = pick(self._parameters[node.path])
                return self._build_node(node.options[picked], pick, made) if node.options else picked

    def _check_storable(self, value: Any, node: FunctionNode) -> None:
        """Refuse a value that the journal cannot store before it is used: a search resumes from its journal."""
        lost = codec.find_lost_objects(codec.encode_config(value, self._find))
        if lost:
            raise ValueError(
                f"the sample_from function of {format_path(node.path)} returned an object of "
                f"{', '.join(lost)}, of which a "
                "search can keep no record: it has to be plain, or an object that param_space has too\n\n"
                "hint: return numbers or a name and make the object of it in the trial, or let tune.choice choose "
                "among objects; an array is plain as x.tolist()"
            )

    @cached_property
    def _parameters(self) -> Mapping[Path, SpaceParameter]:
        places = [
            SpaceParameter(n.path, n.domain, n.condition) for n in iter_nodes(self._tree) if isinstance(n, DrawnNode)
        ]
        names = _parameter_names(places)
        return MappingProxyType(
            {
                place.path: SpaceParameter(place.path, place.domain, place.condition, names[place.path])
                for place in places
            }
        )

    @cached_property
    def _keys(self) -> dict[Path, str]:
        return {node.path: node.key for node in iter_nodes(self._tree) if isinstance(node, DrawnNode)}

    @cached_property
    def _has_functions(self) -> bool:
        return any(isinstance(node, FunctionNode) for node in iter_nodes(self._tree))

    @cached_property
    def _objects(self) -> dict[Path, Any]:
        fixed = (node for node in iter_nodes(self._tree) if isinstance(node, FixedNode))
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
        return next((path for path, other in alike if is_same_value(other, value)), None)


def _check_root(tree: SpaceNode, param_space: Any) -> None:
    match tree:
        case GroupNode(kind="dict"):
            return
        case DrawnNode(domain=Categorical(), options=options):
            for option in options:
                _check_root(option, getattr(option, "value", param_space))
            return
    raise ValueError(
        f"param_space={param_space!r} is not a dict of parameters\n\n"
        "hint: param_space={'lr': tune.loguniform(1e-4, 1e-1)}"
    )


def _check_whole(name: str, value: Any, least: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise ValueError(f"{name}={value!r} is not a whole number{'' if least is None else f' of {least} or more'}")


def _parameter_names(places: list[SpaceParameter]) -> dict[Path, str]:
    """Use short names if they are unique, else names with the options on the way, else full paths."""
    short = {place.path: "/".join(map(str, place.config_keys)) or "param_space" for place in places}
    long = {
        place.path: "/".join(f"option {s.index}" if isinstance(s, Option) else str(s) for s in place.path)
        for place in places
    }
    num_short, num_long = Counter(short.values()), Counter(long.values())
    names: dict[Path, str] = {}
    for place in places:
        name = short[place.path]
        if num_short[name] > 1:
            name = long[place.path] if num_long[long[place.path]] == 1 else format_path(place.path)
        names[place.path] = name
    return names
