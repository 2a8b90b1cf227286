"""What people are shown of a configuration: plain, short, and without what looks like a secret."""

import dataclasses
import enum
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._core.masking import MASK, is_secret_name, mask_value


@pytest.mark.parametrize(
    "name",
    [
        *("password", "db_passwd", "API_KEY", "openai-api-key", "wandbApiKey", "aws_secret_access_key"),
        *("client.secret", "hf_token", "accessToken", "credentials", "private_key", "basic_auth"),
    ],
)
def test_names_of_secrets_are_recognised(name):
    assert is_secret_name(name)
    assert mask_value({name: "abc", "lr": 0.1}) == {name: MASK, "lr": 0.1}
    assert mask_value({"deep": [{name: {"user": "x"}}]}) == {"deep": [{name: MASK}]}


def test_other_names_a_number_and_nothing_are_left_alone():
    names = ["num_tokens", "tokenizer", "pad_token", "eos_token", "key", "author", "passes", "tokens"]
    plain = {**dict.fromkeys(names, "abc"), "token": 3, "password": None, "api_key": ""}
    assert mask_value(plain) == plain


class Client:
    def __repr__(self):
        return "Client(url='redis://:hunter2@cache:1', api_key='hunter2', headers={'token': \"hunter2\", 'a': 'b'})"


def test_a_password_in_an_address_and_a_secret_in_a_repr_are_masked():
    assert mask_value("postgres://me:hunter2@db/x") == f"postgres://me:{MASK}@db/x"
    assert mask_value({"client": Client()})["client"] == (
        f"Client(url='redis://:{MASK}@cache:1', api_key={MASK}, headers={{'token': {MASK}, 'a': 'b'}})"
    )


class Kind(enum.Enum):
    FAST = 1


@dataclasses.dataclass
class Model:
    width: int = 3
    secret: str = "x"


class Broken:
    def __repr__(self):
        raise ValueError


@pytest.mark.parametrize(
    ("value", "description"),
    [
        (Kind.FAST, "Kind.FAST"),
        (Model(), {"width": 3, "secret": MASK}),
        (Path("/data"), "/data"),
        (np.float32(0.5), 0.5),
        (np.zeros((3, 4)), "ndarray of shape (3, 4)"),
        (json.dumps, "json.dumps"),
        (object(), "<object object>"),
        (Broken(), "<Broken>"),
        (float("nan"), "nan"),
        (np.str_("of NumPy"), "of NumPy"),
        ({3: {1, 2}}, {"3": [1, 2]}),
        (list(range(1000)), [*range(100), "... 900 more"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_not_plain_are_described_shortly(value, description):
    assert mask_value(value) == description
    assert type(mask_value(value)) is type(description)
    assert len(mask_value("x" * 10_000)) < 5000


def test_a_value_that_contains_itself_is_cut_off():
    endless: dict[str, object] = {}
    endless["self"] = endless
    json.dumps(mask_value(endless))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner)
        | st.frozensets(st.integers() | st.text())
    ),
)


@settings(max_examples=50, deadline=None)
@given(ANYTHING)
def test_whatever_it_is_it_can_be_written_as_json(value):
    json.dumps(mask_value(value), allow_nan=False).encode()


@given(st.text(min_size=6), st.lists(st.sampled_from(["a", "config", "list"]), max_size=10))
def test_a_secret_is_nowhere_in_what_is_shown(text, path):
    value: object = {"api_key": f"sk-{text}"}
    for name in path:
        value = {name: [value]} if name == "list" else {name: value}
    assert "sk-" not in json.dumps(mask_value(value), ensure_ascii=False)
