"""Links to agents: what is done about one that is silent, and for how long it has been."""

import socket

import pytest

from paceline._engine.ray import agent_links
from paceline._engine.ray.agent_links import AwakeClock, LinkState, can_connect, decide_next
from paceline._engine.ray.node_agent import ActorPlacement
from paceline._engine.ray.placement import PlacementSpec

HERE = ActorPlacement("b1", "10.0.0.7", "host-b", 41, 8)


@pytest.mark.parametrize(
    ("silence_s", "is_reported", "is_reachable", "expected"),
    [
        (9.0, False, None, "nothing"),
        (10.0, False, None, "report"),
        (59.0, True, None, "nothing"),
        (60.0, True, None, "probe"),
        (60.0, True, False, "give up"),
        # The link is back, and what hung on it resumes with the next packet that is sent again.
        (60.0, True, True, "nothing"),
        (119.0, True, True, "nothing"),
        (120.0, True, True, "give up"),
        (120.0, True, None, "give up"),
        # The user learns of it before workers are replaced.
        (200.0, False, False, "report"),
    ],
)
def test_decides_what_to_do_about_a_silent_agent(silence_s, is_reported, is_reachable, expected):
    assert decide_next(silence_s, 60.0, is_reported=is_reported, is_reachable=is_reachable) == expected


def test_a_limit_below_that_of_the_notice_is_kept():
    assert decide_next(4.0, 4.0, is_reported=False, is_reachable=None) == "report"
    assert decide_next(4.0, 4.0, is_reported=True, is_reachable=False) == "give up"


def test_a_driver_that_was_suspended_has_not_missed_an_answer():
    clock, link = AwakeClock(), LinkState()
    for passed_s in (1.0, 1.0, 3600.0, 1.0):
        clock.advance(passed_s)
    assert clock.elapsed_s == 5.0
    assert link.hear(clock.elapsed_s) is None, "it was not reported"
    link.is_reported = True
    assert link.hear(clock.elapsed_s + 14.0) == 14.0
    assert not link.is_reported


def test_says_which_host_does_not_answer_and_what_follows():
    assert agent_links.format_silence(HERE, [2, 3], 12.3, 60.0) == (
        "no answer from host-b (10.0.0.7) for 12 s: the link between the driver and that host may be down; "
        "ranks 2, 3 will be replaced after 60 s (PACELINE_NODE_PATIENCE_S)"
    )
    assert agent_links.format_return(HERE, 14.0) == "host-b (10.0.0.7) answers again, after 14 s"


def test_a_host_that_accepts_connections_can_be_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert can_connect("127.0.0.1", port)
    assert not can_connect("127.0.0.1", port)


def test_nodes_that_cannot_be_reached_are_left_out_of_a_placement():
    assert PlacementSpec({"CPU": 1}).bundle_selectors_without(2, ()) == [{}, {}]
    spec = PlacementSpec({"CPU": 1}, label_selector={"zone": "a"})
    assert spec.bundle_selectors_without(2, {"c1", "b1"}) == [{"ray.io/node-id": "!in(b1,c1)", "zone": "a"}] * 2
    chosen = PlacementSpec({"CPU": 1}, label_selector=[{"ray.io/node-id": "b1"}])
    assert chosen.bundle_selectors_without(1, {"b1"}) == [{"ray.io/node-id": "b1"}], "the user chose"
