"""What a query may ask for."""

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._dashboard import query_fields
from paceline._dashboard.query_fields import QueryFields, RequestRefusedError, points_per_metric


def parse(query):
    return QueryFields.from_query(query.encode())


def test_fields_are_read():
    found = parse("run=a%2Fb+c%C3%A9&name=x&name=y&name=x&limit=7&from=-1.5&x=time")
    assert found.text("run") == "a/b cé"
    assert found.all_texts("name") == ("x", "y")
    assert found.integer("limit") == 7
    assert found.integer("points", 12) == 12
    assert found.range() == (-1.5, math.inf)
    assert found.axis() == "time"
    assert parse("").range() is None
    assert parse("").optional_integer("before") is None


@pytest.mark.parametrize(
    "ask",
    [
        *(lambda n=n: parse(f"n={n}").integer("n") for n in ("1.5", "-1", "1_0", "%D9%A1", "9" * 40, "")),
        lambda: parse("").text("run"),
        lambda: parse("run=a&run=b").text("run"),
        lambda: parse(f"run={'a' * 5000}").text("run"),
        lambda: parse("n=0").integer("n", least=1),
        lambda: parse("from=nan").range(),
        lambda: parse("from=2&to=1").range(),
        lambda: parse("x=other").axis(),
        lambda: parse("&".join(f"a{n}=1" for n in range(2000))),
        lambda: parse("a=" + "x" * 40_000),
    ],
)
def test_wrong_fields_are_refused_with_a_reason(ask):
    with pytest.raises(RequestRefusedError) as caught:
        ask()
    assert caught.value.status in (400, 414)
    assert caught.value.text


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_query_or_refused(query):
    with contextlib.suppress(RequestRefusedError):
        assert all(isinstance(name, str) for name in QueryFields.from_query(query).all_texts("name"))


@settings(deadline=None)
@given(st.integers(1, 10**9), st.integers(0, 10**6))
def test_points_are_bounded_over_all_metrics(wanted, num_metrics):
    each = points_per_metric(wanted, num_metrics)
    assert 1 <= each <= min(wanted, query_fields.MAX_POINTS)
    assert each <= query_fields.MIN_POINTS or each * num_metrics <= query_fields.MAX_POINTS_PER_REQUEST
