"""What people are shown of a configuration: plain, short, and without what looks like a secret."""

import dataclasses
import enum
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline._core.masking import MASK, arguments, is_secret, shown


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "db_passwd",
        "API_KEY",
        "apikey",
        "openai-api-key",
        "wandbApiKey",
        "aws_secret_access_key",
        "client.secret",
        "hf_token",
        "token",
        "accessToken",
        "credentials",
        "private_key",
        "basic_auth",
    ],
)
def test_names_of_secrets_are_known(name):
    assert is_secret(name)
    assert shown({name: "abc", "lr": 0.1}) == {name: MASK, "lr": 0.1}
    assert shown({"deep": [{name: {"user": "x"}}]}) == {"deep": [{name: MASK}]}


@pytest.mark.parametrize(
    "name", ["num_tokens", "max_tokens", "tokenizer", "pad_token", "eos_token", "key", "author", "passes", "tokens"]
)
def test_other_names_are_left_alone(name):
    assert shown({name: "abc"}) == {name: "abc"}


def test_a_number_or_nothing_is_no_secret():
    assert shown({"token": 3, "password": None, "api_key": ""}) == {"token": 3, "password": None, "api_key": ""}


def test_a_password_in_an_address_is_masked_wherever_it_is():
    assert shown("postgres://me:hunter2@db/x") == f"postgres://me:{MASK}@db/x"

    class Client:
        def __repr__(self):
            return "Client('redis://:hunter2@cache:1')"

    assert "hunter2" not in json.dumps(shown({"client": Client()}))


def test_a_secret_in_what_an_object_says_of_itself_is_masked():
    class Client:
        def __repr__(self):
            return "Client(url='x', api_key='hunter2', headers={'token': \"hunter2\", 'a': 'b'})"

    assert shown(Client()) == f"Client(url='x', api_key={MASK}, headers={{'token': {MASK}, 'a': 'b'}})"


def test_options_of_a_command_are_masked_by_their_names():
    given = ["train.py", "--api-key", "sk-1", "--password=x", "--lr", "0.1", "--token", "--verbose"]
    assert arguments(given) == [
        "train.py",
        "--api-key",
        MASK,
        f"--password={MASK}",
        "--lr",
        "0.1",
        "--token",
        "--verbose",
    ]


def test_what_is_not_plain_is_told_shortly():
    class Kind(enum.Enum):
        FAST = 1

    @dataclasses.dataclass
    class Model:
        width: int = 3
        secret: str = "x"

    class Broken:
        def __repr__(self):
            raise ValueError

    told = shown(
        {
            "kind": Kind.FAST,
            "model": Model(),
            "path": Path("/data"),
            "number": np.float32(0.5),
            "array": np.zeros((3, 4)),
            "function": test_what_is_not_plain_is_told_shortly,
            "object": object(),
            "broken": Broken(),
            "nan": float("nan"),
            "text": np.str_("of NumPy"),
            3: {1, 2},
            "many": list(range(1000)),
            "long": "x" * 10_000,
        }
    )
    assert told["kind"] == "Kind.FAST"
    assert told["model"] == {"width": 3, "secret": MASK}
    assert told["path"] == "/data"
    assert told["number"] == 0.5
    assert told["array"] == "ndarray of shape (3, 4)"
    assert told["function"].endswith(".test_what_is_not_plain_is_told_shortly")
    assert told["object"] == "<object object>"
    assert told["broken"] == "<Broken>"
    assert told["nan"] == "nan"
    assert type(told["text"]) is str
    assert told["3"] == [1, 2]
    assert told["many"][-1] == "... 900 more"
    assert len(told["long"]) < 5000


def test_what_holds_itself_ends_somewhere():
    endless: dict[str, object] = {}
    endless["self"] = endless
    json.dumps(shown(endless))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner)
        | st.frozensets(st.integers() | st.text())
    ),
)


@given(ANYTHING)
def test_whatever_it_is_it_can_be_written_as_json(value):
    json.dumps(shown(value), allow_nan=False).encode()


@given(st.text(min_size=6), st.lists(st.sampled_from(["a", "config", "list"]), max_size=10))
def test_a_secret_is_nowhere_in_what_is_shown(text, path):
    value: object = {"api_key": f"sk-{text}"}
    for name in path:
        value = {name: [value]} if name == "list" else {name: value}
    assert "sk-" not in json.dumps(shown(value), ensure_ascii=False)
