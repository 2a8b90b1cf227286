"""Nodes of a cluster: who is affected by draining, how losses are described, which bundles are reused."""

import pytest

from paceline._engine.ray import nodes
from paceline._engine.ray.agent_pool import choose_bundles
from paceline._engine.ray.node_agent import ActorPlacement
from paceline._engine.ray.nodes import ActorLoss, ClusterSurvey, NodeStatus, find_drain_notices, parse_loss

HERE = ActorPlacement("b1", "10.0.0.7", "host-b", 41, 8)
UP = ClusterSurvey({"a1": NodeStatus("10.0.0.6"), "b1": NodeStatus("10.0.0.7"), "c1": NodeStatus("10.0.0.8")})
LOST = ClusterSurvey(
    {"a1": NodeStatus("10.0.0.6"), "b1": NodeStatus("10.0.0.7", is_alive=False, death_reason="missed heartbeats")}
)


def test_a_draining_node_is_reported_once_to_affected_ranks():
    draining = {"b1": 130.0, "c1": 0.0, "d1": 500.0}
    first = find_drain_notices(draining, set(), ["a1", "b1", "b1"], driver="c1", now=100.0, default_s=30.0)
    assert [(n.node_id, n.grace_s, n.ranks, n.includes_driver) for n in first] == [
        ("b1", 30.0, (1, 2), False),
        ("c1", 30.0, (), True),
    ]
    assert find_drain_notices(draining, {"b1", "c1"}, ["a1", "b1", "b1"], driver="c1", now=101.0, default_s=30.0) == []
    (late,) = find_drain_notices({"b1": 90.0}, set(), ["b1"], driver="b1", now=100.0, default_s=30.0)
    assert (late.grace_s, late.includes_driver) == (0.0, True), "a deadline that has passed leaves no time"


OUT_OF_MEMORY = "1 worker was killed.\nOOM kill reason: Memory usage 353B exceeded threshold of 50B (2.0% of 99B)\n"


@pytest.mark.parametrize(
    ("loss", "survey", "drained", "kind", "message"),
    [
        (ActorLoss("ActorDiedError", "x"), LOST, False, "killed", "node 10.0.0.7 (b1) was lost: missed heartbeats"),
        (ActorLoss("ActorDiedError", "x"), ClusterSurvey(), False, "killed", "its node 10.0.0.7 (b1) was lost"),
        (ActorLoss("ActorDiedError", "x", is_preempted=True), LOST, False, "preempted", "(b1) was taken away: missed"),
        (ActorLoss("ActorDiedError", "x"), LOST, True, "preempted", "its node 10.0.0.7 (b1) was taken away"),
        (ActorLoss("ActorDiedError", "x", is_preempted=True), UP, False, "preempted", "(b1) is being taken away"),
        (ActorLoss("ActorDiedError", "x"), UP, False, "killed", "of its node 10.0.0.7 (b1), process 41, was killed"),
        (ActorLoss("ActorDiedError", "killed by `ray.kill`"), UP, False, "killed", "was killed with ray.kill"),
        (ActorLoss("OutOfMemoryError", OUT_OF_MEMORY), UP, False, "memory", "353B exceeded threshold of 50B"),
        (ActorLoss("AgentSilentError", "no answer"), UP, False, "killed", "(b1) cannot be reached: no answer"),
        (ActorLoss("AgentSilentError", "no answer"), LOST, False, "killed", "(b1) was lost: missed heartbeats"),
        (ActorLoss("ActorUnavailableError", "x"), UP, False, "engine", "cannot be reached"),
        (ActorLoss("RayTaskError(OSError)", "ray::x()\n  a.py\nOSError: full"), UP, False, "engine", ": OSError: full"),
        (ActorLoss("EOFError", "its stream ended"), UP, False, "engine", "EOFError: its stream ended"),
    ],
)
def test_classifies_how_an_actor_was_lost(loss, survey, drained, kind, message):
    failure = nodes.make_loss_failure(loss, 3, HERE, survey, drained=drained, at=1.5)
    assert (failure.rank, failure.kind, failure.at, failure.host) == (3, kind, 1.5, "host-b")
    assert message in failure.message
    assert "\n" not in failure.message


def test_parses_errors_of_ray_and_others_alike():
    class Died(Exception):
        preempted = True

    assert parse_loss(Died("a\nb")) == ActorLoss("Died", "a\nb", is_preempted=True)
    assert parse_loss(ValueError("x")) == ActorLoss("ValueError", "x")


CUT_OFF = ClusterSurvey(UP.nodes, unreachable=frozenset({"b1"}))
DRAINED = ClusterSurvey(UP.nodes, {"b1": 0.0})
FOUR = {0: "a1", 1: "a1", 2: "b1", 3: "b1"}
BOTH = {"a1", "b1"}


@pytest.mark.parametrize(
    ("size", "placed", "warm", "survey", "expected"),
    [
        (4, FOUR, BOTH, UP, [0, 1, 2, 3]),
        # Two were lost with their node and have been moved: the others stay.
        (4, {0: "a1", 1: "a1", 2: "c1", 3: "c1"}, {"a1"}, UP, [0, 1, 2, 3]),
        # Not moved yet.
        (4, {0: "a1", 1: "a1", 2: "", 3: ""}, {"a1"}, LOST, "wait"),
        (4, FOUR, {"a1"}, LOST, "wait"),
        # Fewer will do: those that are left, which have all imported already.
        (2, {0: "", 1: "", 2: "b1", 3: "b1"}, {"b1"}, UP, [2, 3]),
        (2, {0: "c1", 1: "c1", 2: "b1", 3: "b1"}, {"b1"}, UP, [2, 3]),
        (1, FOUR, BOTH, UP, [0]),
        # More than are left of what was asked for, and fewer than that.
        (3, {0: "", 1: "", 2: "b1", 3: "b1"}, {"b1"}, UP, "anew"),
        # A node that is drained keeps its bundles until it is gone: they are not waited for.
        (4, FOUR, BOTH, DRAINED, "anew"),
        # Only the driver cannot reach a node: Ray leaves the bundles where they are.
        (4, FOUR, BOTH, CUT_OFF, "anew"),
        (2, FOUR, BOTH, CUT_OFF, [0, 1]),
        (2, FOUR, BOTH, DRAINED, [0, 1]),
        # Removed by somebody.
        (4, {}, BOTH, UP, "anew"),
    ],
)
def test_reuses_bundles_where_possible(size, placed, warm, survey, expected):
    assert choose_bundles(size, placed, warm, survey) == expected
