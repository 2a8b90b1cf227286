import math
import re

import pytest

from paceline._core import arguments
from paceline._core.arguments import check_bool, check_callable, check_choice, check_instance, check_int, check_number


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_int("n", -1, at_least=1), "n must be a positive integer, got -1"),
        (lambda: check_int("n", True), "n must be an integer, got True"),
        (lambda: check_int("n", 1.0, at_least=0, optional=True), "n must be a non-negative integer or None, got 1.0"),
        (lambda: check_int("n", 1, at_least=2), "n must be an integer of at least 2, got 1"),
        (lambda: check_int("n", 9, at_least=2, at_most=8), "n must be an integer from 2 to 8, got 9"),
        (lambda: check_number("x", "1"), "x must be a number, got '1'"),
        (lambda: check_number("x", math.nan, at_least=0), "x must be a non-negative number, got nan"),
        (lambda: check_number("x", 0, above=0, optional=True), "x must be a positive number or None, got 0"),
        (lambda: check_number("x", 1, above=0, below=1), "x must be a number above 0 and below 1, got 1"),
        (lambda: check_number("x", 1.5, at_least=0, at_most=1), "a number of at least 0 and of at most 1, got 1.5"),
        (lambda: check_bool("b", 1), "b must be True or False, got 1"),
        (lambda: check_bool("b", 0, optional=True), "b must be True, False or None, got 0"),
        (lambda: check_choice("mode", "mx", ["min", "max", "avg"]), "mode must be 'min', 'max' or 'avg', got 'mx'"),
        (lambda: check_choice("mode", True, [1]), "mode must be 1, got True"),
        (lambda: check_choice("m", "x", ["y"], hint="use y"), "m must be 'y', got 'x'\n\nhint: use y"),
        (lambda: check_instance("d", 3, dict, "a dict", optional=True), "d must be a dict or None, got 3"),
        (lambda: check_callable("fn", "f"), "fn must be a function, got 'f'"),
        (lambda: arguments.check_names("cols", "ab"), "cols must be a list of names, got 'ab'"),
        (lambda: arguments.check_names("cols", ["a", 1]), "cols must be a list of names, got ['a', 1]"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(check, message):
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        check()


def test_a_good_value_is_returned():
    assert check_int("n", 3, at_least=3, at_most=3) == 3
    assert check_int("n", None, optional=True) is None
    assert check_number("x", 0.5, above=0, below=1) == 0.5
    assert check_number("x", 10**400) == 10**400  # beyond a float, and finite
    assert check_bool("b", False) is False
    assert check_choice("mode", None, [None, "a"]) is None
    assert check_instance("d", {}, dict, "a dict") == {}
    assert check_callable("fn", None, optional=True) is None
    assert arguments.check_names("cols", ("a", "b")) == ("a", "b")
    assert not arguments.is_finite_number(math.inf)


def test_a_nested_dict_is_flattened_by_its_keys():
    assert arguments.flatten_dict({"a": {"b": 1, "c": {}}, "d": [2]}) == {"a/b": 1, "a/c": {}, "d": [2]}
    assert arguments.flatten_dict({"a": {1: 2}}, separator=".") == {"a.1": 2}
