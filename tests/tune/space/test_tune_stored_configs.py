"""Configurations and spaces as plain JSON: they come back as they were, or it is said what cannot."""

import dataclasses
import json
import re
from typing import Any

import msgspec
import numpy as np
import pytest
from drawn_spaces import THING, Color, Model, activation, same, spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.tune.space import Space
from paceline.tune.space import domains as tune
from paceline.tune.space.space_codec import LostObject, decode_config, object_name, rebuild_param_space


def through_json(plain):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(msgspec.json.encode(plain), parse_constant=refuse)


@dataclasses.dataclass(frozen=True)
class Scaling:
    num_workers: int
    kind: Any = None


@settings(deadline=None, max_examples=50)
@given(spaces(), st.integers(0, 20))
@example({"a": {"$number": "nan", "$lost": 1, "$items": []}, 1: (1, [()]), "": {None: {True: -0.0}}}, 0)
def test_a_configuration_comes_back_from_json_as_it_was(param_space, number):
    config = Space(param_space).draw(number, 3)
    stored = through_json(Space(param_space).encode_config(config))
    assert same(Space(param_space).decode_config(stored), config)


@settings(deadline=None, max_examples=50)
@given(spaces(functions=False))
def test_a_space_is_made_again_from_its_description_unless_it_has_objects(param_space):
    space = Space(param_space)
    plain = through_json(space.describe())
    assert space.find_differences(plain) == []
    if space._objects:
        with pytest.raises(ValueError, match="hint: pass param_space again"):
            Space(rebuild_param_space(plain))
        return
    again = Space(rebuild_param_space(plain))
    assert again.describe() == space.describe()
    for number in range(5):
        assert same(again.draw(number, 1), space.draw(number, 1))


def test_plain_values_are_stored_as_they_are_and_an_object_as_its_place_in_the_space():
    config = {"lr": 0.1, "n": 3, "name": "x", "none": None, "flag": True, "list": [1, {"a": "b"}]}
    assert Space(config).encode_config(config) == config
    space = Space({"model": {"class": tune.choice([activation, Model])}, "same": tune.sample_from(lambda s: s.model)})
    config = next(c for c in (space.draw(n, 0) for n in range(20)) if c["model"]["class"] is Model)
    stored = space.encode_config(config)
    place = {"$space": ["model", "class", {"option": 1}], "is": "drawn_spaces.Model"}
    assert stored == {"model": {"class": place}, "same": {"class": place}}
    assert space.decode_config(through_json(stored)) == config


def test_of_objects_the_very_one_is_found_or_else_one_that_is_equal():
    space = Space({"scaling": tune.choice([Scaling(1), Scaling(2)])})
    stored = space.encode_config({"scaling": Scaling(2)})
    assert space.decode_config(stored)["scaling"] == Scaling(2)
    space = Space(
        {"array": tune.choice([np.zeros(2), np.zeros(3), np.ones(2)]), "alike": tune.choice([Scaling(1), Scaling(1)])}
    )
    for number in range(10):
        config = space.draw(number, 0)
        again = space.decode_config(space.encode_config(config))
        assert again["array"] is config["array"]
        assert again["alike"] is config["alike"]
    space = Space({"a": tune.choice([np.float32(0.5)]), "b": tune.sample_from(lambda spec: np.int64(7))})
    config = space.decode_config(space.encode_config(space.draw(0, 0)))
    assert (type(config["a"]), type(config["b"])) == (np.float32, int)
    assert config == {"a": 0.5, "b": 7}


@pytest.mark.parametrize("made", [Model(), [1, {"a": (Model(),)}]], ids=["itself", "inside"])
def test_refuses_a_function_whose_value_cannot_be_stored(made):
    space = Space({"a": 1, "model": {"x": tune.sample_from(lambda spec: made)}})
    with pytest.raises(ValueError, match=re.escape("got an object of drawn_spaces.Model, which cannot be stored")):
        space.draw(0, 0)


def test_objects_are_known_by_name_without_a_space_and_in_a_script_as_in_a_module():
    stored = through_json(Space({"a": 1}).encode_config({"a": 1, "model": {"x": Model()}}))
    with pytest.raises(ValueError, match=r"cannot restore config\['model'\]\['x'\]: the object of drawn_spaces.Model"):
        Space({"a": 1}).decode_config(stored)
    assert decode_config(stored, None) == {"a": 1, "model": {"x": LostObject("drawn_spaces.Model")}}
    space = Space({"f": activation, "t": (Color.RED,)})
    shown = repr(decode_config(space.encode_config(space.draw(0, 0)), None))
    assert shown == "{'f': <drawn_spaces.activation>, 't': (<drawn_spaces.Color.RED>,)}"
    stored = Space({"f": activation}).encode_config({"f": activation})
    stored["f"]["is"] = "activation"
    assert Space({"f": activation}).decode_config(stored) == {"f": activation}


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({}, "config['f']: param_space['f'] was drawn_spaces.activation, and param_space now has no object there"),
        ({"f": Model}, "param_space['f'] was drawn_spaces.activation, and param_space now has drawn_spaces.Model"),
    ],
)
def test_a_space_that_has_changed_does_not_give_another_object(now, message):
    stored = Space({"f": activation}).encode_config({"f": activation})
    with pytest.raises(ValueError, match=re.escape(message)):
        Space(now).decode_config(stored)


class Named:
    def __repr__(self):
        return "library.name"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Color.RED, "drawn_spaces.Color.RED"),
        (Model, "drawn_spaces.Model"),
        (activation, "drawn_spaces.activation"),
        (THING, "object"),
        (b"a", "bytes"),
        (np.zeros(1), "numpy.ndarray"),
        (Named(), "library.name"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_names_do_not_depend_on_where_an_object_is_in_memory(value, name):
    assert object_name(value) == name


BEFORE = {
    "lr": tune.loguniform(1e-4, 1e-1),
    "model": tune.choice([{"kind": "a", "width": tune.randint(1, 9)}, {"kind": "b"}]),
    "act": tune.choice([activation, Color.RED]),
    "scaling": Scaling(2),
    "fixed": (1, [True, "x"]),
    "made": tune.sample_from(activation),
}
WIDER, FIELDS = {"kind": "a", "width": 8}, {"options": 1, "function": 2, "fields": 3}
DRAWN = tune.sample_from(abs)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"lr": tune.loguniform(1e-5, 1)}, "['lr'] was loguniform(0.0001, 0.1) and is now loguniform(1e-05, 1.0)"),
        ({"model": tune.choice([WIDER, {"kind": "b"}])}, "['model'](option 0)['width'] was randint(1, 9) and is now 8"),
        ({"act": tune.choice([activation, abs])}, "['act'](option 1) was drawn_spaces.Color.RED and is now abs"),
        ({"scaling": Scaling(4)}, "['scaling'].num_workers was 2 and is now 4"),
        ({"fixed": (1, [1, "x"])}, "['fixed'][1][0] was True and is now 1"),
        (
            {"made": tune.sample_from(abs)},
            "['made'] was sample_from(drawn_spaces.activation) and is now sample_from(abs)",
        ),
        ({"scaling": FIELDS}, f"['scaling'] was {__name__}.Scaling(num_workers=2, kind=None) and is now {FIELDS}"),
        ({"new": float("nan")}, "['new'] is new: nan"),
    ],
)
def test_a_difference_is_named(change, difference):
    before = through_json(Space(BEFORE).describe())
    assert Space({**BEFORE, **change}).find_differences(before) == [f"param_space{difference}"]
    assert Space(BEFORE).find_differences(before) == []
    gone = {name: part for name, part in BEFORE.items() if name != "lr"}
    assert Space(gone).find_differences(before) == ["param_space['lr'] was loguniform(0.0001, 0.1) and is gone"]


def test_the_order_of_a_grid_is_a_difference_and_a_space_with_objects_says_which_they_are():
    x, y = {"x": tune.grid_search([1, 2])}, {"y": tune.grid_search([3, 4])}
    assert "changed their order" in Space({**x, **y}).find_differences(Space({**y, **x}).describe())[0]
    x, y = {"x": tune.uniform(0, 1)}, {"y": tune.uniform(2, 3)}
    assert Space({**x, **y}).find_differences(Space({**y, **x}).describe()) == []
    with pytest.raises(ValueError) as refusal:
        rebuild_param_space(Space(BEFORE).describe())
    for part in ("param_space['act'](option 0) is drawn_spaces.activation", "param_space['made'] is a sample_from"):
        assert part in str(refusal.value)
