"""A search space: which configurations there are, drawn by number or put together from what a searcher picked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from paceline.tune.space import stored as codec
from paceline.tune.space.chance import Chance
from paceline.tune.space.described import described, differences, param_space_of
from paceline.tune.space.domains import Categorical, Domain, Grid
from paceline.tune.space.points import Point, is_same, point_of
from paceline.tune.space.spec import Filling, Pending
from paceline.tune.space.tree import (
    Drawn,
    Fixed,
    Group,
    Made,
    Node,
    Option,
    Path,
    Place,
    grid_options,
    nodes,
    num_grid,
    told,
    tree_of,
)

Pick = Callable[[Place], Any]
_NO_POINT = Point({}, {})


class Space:
    """A search space, checked at once. `param_space` is not changed, and not to be changed afterwards.

    Every draw is a function of the space, a number and a seed: it does not depend on the process, on its hash seed, or
    on other draws. A parameter that is added to the space leaves what is drawn for the others as it is.
    """

    def __init__(self, param_space: Mapping[Any, Any] | Domain | None = None) -> None:
        root: Any = {} if param_space is None else param_space
        if isinstance(root, Mapping) and type(root) is not dict:
            root = dict(root)  # Whatever kind of mapping the parameters are in, a configuration is a dict.
        self._tree = tree_of(root)
        _check_root(self._tree, param_space)

    @property
    def num_grid(self) -> int:
        """How many combinations of the values of `grid_search` there are; 1 without one."""
        return self.num_grid_of(_NO_POINT)

    def num_grid_of(self, point: Point) -> int:
        """How many combinations there are of what a point leaves open."""
        return num_grid(self._tree, point.picked)

    def draw(self, number: int, seed: int) -> dict[str, Any]:
        """The configuration of the number-th trial, from 0: the next combination of the grid, and random values."""
        _check_whole("number", number, 0)
        _check_whole("seed", seed)
        return self.drawn(number % self.num_grid, ("trial", number), seed)

    def drawn(self, grid: int, name: tuple[int | str, ...], seed: int, point: Point = _NO_POINT) -> dict[str, Any]:
        """The combination number `grid` with random values that `name` and `seed` give; `point` has what is set."""
        picked: dict[Path, Any] = {**point.picked, **dict(grid_options(self._tree, grid, point.picked))}

        def pick(place: Place) -> Any:
            if place.path in picked or isinstance(place.domain, Grid):  # A grid is never left to chance.
                return picked[place.path]
            return place.domain.pick(Chance(seed, *name, self._keys[place.path]))

        return self._put_together(pick, (seed, *name), point.made)

    def domains(self) -> dict[Path, Place]:
        """All that is drawn, by path and in order, with what is drawn only if a certain option was."""
        return {**self._places}

    def resolved(self, picked: Mapping[Path, Any], number: int = 0, seed: int = 0) -> dict[str, Any]:
        """The configuration with these numbers, and these indexes of options, by the paths of `domains()`.

        Constants are filled in, and what `sample_from` functions make, with randomness that `number` and `seed` give.
        Whatever is under an option that was not picked is not needed, and left aside.
        """
        unknown = [path for path in picked if path not in self._places]
        if unknown:
            raise ValueError(f"there is nothing to pick at {', '.join(map(told, unknown))}")

        def pick(place: Place) -> Any:
            if place.path not in picked:
                raise ValueError(f"nothing was picked for {told(place.path)}, which is {place.domain}")
            return picked[place.path]

        return self.put_together(pick, number, seed)

    def put_together(
        self, pick: Pick, number: int = 0, seed: int = 0, made: Mapping[Path, Any] | None = None
    ) -> dict[str, Any]:
        """As `resolved`, with a function that is asked for each place that there is, outer ones first.

        `made` has values, by path, that stand in for those of `sample_from` functions, as those of a `Point` do.
        """

        def checked(place: Place) -> Any:
            picked = pick(place)
            if not place.domain.contains(picked):
                what = "the index of an option of" if isinstance(place.domain, Categorical) else "in"
                raise ValueError(f"{told(place.path)}: {picked!r} is not {what} {place.domain}")
            return place.domain.nearest(picked)

        return self._put_together(checked, (seed, "trial", number), made or {})

    def point(self, config: Mapping[str, Any], name: str = "point") -> Point:
        """What a configuration, or a part of one, sets. Raises `ValueError` for what is not in the space."""
        return point_of(self._tree, config, name)

    def stored(self, config: Mapping[str, Any]) -> Any:
        """A configuration in plain form, with objects as places in this space."""
        return codec.stored(dict(config), self._find)

    def restored(self, plain: Any) -> dict[str, Any]:
        """The configuration that `stored` was given, with the objects of this space.

        Raises `ValueError` for an object that this space does not have: one that a function had made.
        """
        restored: dict[str, Any] = codec.restored(plain, self._objects.__getitem__)
        return restored

    def described(self) -> Any:
        """The space in plain form; objects and functions by their names only."""
        return described(self._tree)

    @classmethod
    def from_described(cls, plain: Any) -> Space:
        """The space of a description. Raises `ValueError` if it has objects or functions, which are not kept."""
        return cls(param_space_of(plain))

    def differences(self, described_before: Any) -> list[str]:
        """What is not as it was when this description was made, a line each; objects by their names only."""
        return differences(described_before, self.described())

    def _put_together(self, pick: Pick, key: tuple[int | str, ...], made: Mapping[Path, Any]) -> dict[str, Any]:
        config = self._built(self._tree, pick, made)
        if self._has_functions:
            config = Filling(config, key, self._check_made).filled()
        assert isinstance(config, dict)
        return config

    def _built(self, node: Node, pick: Pick, made: Mapping[Path, Any]) -> Any:
        match node:
            case Fixed():
                return node.value
            case Group():
                return node.built([self._built(child, pick, made) for child in node.children])
            case Made():
                return made[node.path] if node.path in made else Pending(node)
            case Drawn():
                picked = pick(self._places[node.path])
                return self._built(node.options[picked], pick, made) if node.options else picked

    def _check_made(self, value: Any, node: Made) -> None:
        """A search goes on from its journal, so what cannot be kept there is refused before it is used."""
        lost = codec.lost_in(codec.stored(value, self._find))
        if lost:
            raise ValueError(
                f"the sample_from function of {told(node.path)} returned an object of {', '.join(lost)}, of which a "
                "search can keep no record: it has to be plain, or an object that param_space has too\n\n"
                "hint: return numbers or a name and make the object of it in the trial, or let tune.choice choose "
                "among objects; an array is plain as x.tolist()"
            )

    @cached_property
    def _places(self) -> Mapping[Path, Place]:
        places = [Place(n.path, n.domain, n.condition) for n in nodes(self._tree) if isinstance(n, Drawn)]
        names = _names(places)
        return MappingProxyType(
            {place.path: Place(place.path, place.domain, place.condition, names[place.path]) for place in places}
        )

    @cached_property
    def _keys(self) -> dict[Path, str]:
        return {node.path: node.key for node in nodes(self._tree) if isinstance(node, Drawn)}

    @cached_property
    def _has_functions(self) -> bool:
        return any(isinstance(node, Made) for node in nodes(self._tree))

    @cached_property
    def _objects(self) -> dict[Path, Any]:
        fixed = (node for node in nodes(self._tree) if isinstance(node, Fixed))
        return {node.path: node.value for node in fixed if type(node.value) not in codec.SCALARS}

    @cached_property
    def _paths_by_id(self) -> dict[int, Path]:
        # Of several places the first, as in a search by equality.
        return {id(value): path for path, value in reversed(self._objects.items())}

    def _find(self, value: Any) -> Path | None:
        if id(value) in self._paths_by_id:
            return self._paths_by_id[id(value)]
        # A copy, as is made on the way through another process.
        alike = ((path, other) for path, other in self._objects.items() if type(other) is type(value))
        return next((path for path, other in alike if is_same(other, value)), None)


def _check_root(tree: Node, param_space: Any) -> None:
    match tree:
        case Group(kind="dict"):
            return
        case Drawn(domain=Categorical(), options=options):
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


def _names(places: list[Place]) -> dict[Path, str]:
    """Short names where they are unique, else with the options on the way, else whole paths."""
    short = {place.path: "/".join(map(str, place.where)) or "param_space" for place in places}
    long = {
        place.path: "/".join(f"option {s.index}" if isinstance(s, Option) else str(s) for s in place.path)
        for place in places
    }
    num_short, num_long = Counter(short.values()), Counter(long.values())
    names: dict[Path, str] = {}
    for place in places:
        name = short[place.path]
        if num_short[name] > 1:
            name = long[place.path] if num_long[long[place.path]] == 1 else told(place.path)
        names[place.path] = name
    return names
