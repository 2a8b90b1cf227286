"""Capacity of a cluster: how many workers fit, which requests can never fit, and the messages about it."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._core.arguments import find_selector_problem as label_problem
from paceline._core.arguments import matches_selector
from paceline._engine.ray.cluster_capacity import (
    ClusterCapacity,
    NodeCapacity,
    compute_cluster_capacity,
    count_fitting_bundles,
    count_fitting_workers,
    describe_wait,
    find_capacity_problem,
)
from paceline._engine.ray.nodes import has_named_types
from paceline._engine.ray.placement import PlacementSpec

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def node(name, labels=None, free=None, **total):
    return NodeCapacity(name, total, total if free is None else free, labels or {})


def cluster(*nodes, grows=False):
    return ClusterCapacity(nodes, grows)


TWO = cluster(node("a", CPU=2.0), node("b", CPU=2.0))
MIXED = cluster(node("a", {"zone": "a"}, CPU=4.0), node("b", {"zone": "b"}, CPU=4.0, GPU=2.0))


amounts = st.fixed_dictionaries({"CPU": st.sampled_from([1.0, 2.0, 3.0]), "GPU": st.sampled_from([0.0, 1.0, 2.0])})
zones = st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}])
asked_zones = st.sampled_from([{}, {"zone": "a"}, {"zone": "!a"}, {"zone": "in(a,b)"}, {"zone": "c"}])
needs = st.sampled_from([{"CPU": 1.0}, {"CPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}, {"GPU": 0.3}, {"CPU": 0.5, "GPU": 0.5}])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(amounts, zones), min_size=1, max_size=3),
    needs,
    st.sampled_from(STRATEGIES),
    st.one_of(asked_zones, st.lists(asked_zones, min_size=1, max_size=4)),
    st.integers(1, 4),
)
def test_capacity_is_that_of_the_best_placement(given_nodes, bundle, strategy, selector, size):
    size = len(selector) if isinstance(selector, list) else size
    spec = PlacementSpec(bundle, strategy, selector)
    nodes = [NodeCapacity(str(index), total, total, labels) for index, (total, labels) in enumerate(given_nodes)]
    num_fitting = count_fitting_workers(spec, size, nodes)
    best = _best(spec, size, nodes)
    if strategy == "STRICT_PACK" and num_fitting < size:
        # What is left over of such a group is of no use: only whether all of it fits matters with several selectors.
        assert best < size
    else:
        assert num_fitting == best


def _best(spec, size, nodes):
    most = 0
    for choice in product([None, *nodes], repeat=size):
        here = {each.id: [index for index in range(size) if choice[index] is each] for each in nodes}
        used = [name for name, workers in here.items() if workers]
        if spec.strategy == "STRICT_PACK" and len(used) > 1:
            continue
        if spec.strategy == "STRICT_SPREAD" and any(len(workers) > 1 for workers in here.values()):
            continue
        selectors = spec.bundle_selectors(size)
        if not all(each is None or matches_selector(selectors[i], each.labels) for i, each in enumerate(choice)):
            continue
        if all(_hold(each.free, spec.bundle, len(here[each.id])) for each in nodes):
            most = max(most, sum(each is not None for each in choice))
    return most


def _hold(free, bundle, count):
    """GPUs one by one."""
    cpus, devices = free.get("CPU", 0), [10] * int(free.get("GPU", 0))
    for _ in range(count):
        cpus -= bundle.get("CPU", 0)
        need = round(bundle.get("GPU", 0) * 10)
        if 0 < need < 10:
            fitting = [index for index, left in enumerate(devices) if left >= need]
            if not fitting:
                return False
            devices[min(fitting, key=lambda index: devices[index])] -= need
        else:
            free_devices = [index for index, left in enumerate(devices) if left == 10][: need // 10]
            if len(free_devices) < need // 10:
                return False
            for index in free_devices:
                devices[index] = 0
    return cpus >= 0


@pytest.mark.parametrize(
    ("free", "bundle", "fit"),
    [
        ({"GPU": 1.5}, {"GPU": 0.3}, 4),
        ({"GPU": 1.5}, {"GPU": 1}, 1),
        ({"CPU": 8}, {"CPU": 1, "special": 1}, 0),
        ({"GPU": 4, "accelerator_type:A100": 1}, {"GPU": 1, "accelerator_type:A100": 0.001}, 4),
        ({"CPU": 0.3}, {"CPU": 0.1}, 3),
    ],
)
def test_what_fits_on_one_node(free, bundle, fit):
    assert count_fitting_bundles(free, bundle) == fit


def test_capacity_counts_free_and_own_resources_once():
    spec = PlacementSpec({"CPU": 1})
    busy = cluster(node("a", free={"CPU": 0.0}, CPU=2.0), node("b", free={"CPU": 1.0}, CPU=2.0))
    assert compute_cluster_capacity(spec, busy, {}, 1, 8) == 1
    assert compute_cluster_capacity(spec, busy, {"a": 2}, 1, 8) == 3
    assert compute_cluster_capacity(spec, busy, {"a": 2, "b": 1}, 1, 8) == 4
    assert compute_cluster_capacity(spec, busy, {"a": 2, "b": 1}, 1, 3) == 3
    # Our places are counted though the cluster has yet to tell, and not on a node that is gone.
    assert compute_cluster_capacity(spec, TWO, {"a": 2, "b": 2}, 1, 8) == 4
    assert compute_cluster_capacity(PlacementSpec({"GPU": 0.3}), cluster(node("a", GPU=1.0)), {"a": 3}, 1, 8) == 3
    assert compute_cluster_capacity(spec, cluster(node("a", CPU=2.0)), {"b": 2}, 1, 8) == 2
    # An autoscaler brings room for the fewest that are needed.
    assert compute_cluster_capacity(spec, cluster(node("a", free={}, CPU=2.0), grows=True), {}, 2, 8) == 2
    assert compute_cluster_capacity(spec, cluster(node("a", free={}, CPU=2.0)), {}, 2, 8) == 0


@pytest.mark.parametrize(
    ("spec", "size", "fragments"),
    [
        (PlacementSpec({"CPU": 1}), 5, ["5 workers with 1 CPU each", ": 2 of them fit"]),
        (PlacementSpec({"GPU": 1}), 1, ["1 worker with 1 GPU can", "none of", "2 nodes with 1 CPU each\n", "hint: "]),
        (PlacementSpec({"CPU": 1}, "STRICT_PACK"), 2, ["STRICT_PACK", ": 1 of them", "placement_strategy='PACK'"]),
        (PlacementSpec({"CPU": 0.5}, "STRICT_SPREAD"), 3, ["STRICT_SPREAD", "fit with placement_strategy='SPREAD'"]),
        (PlacementSpec({"CPU": 1}, label_selector={"zone": "b"}), 2, ["with zone=b", "(zone=a)", "fit without label"]),
        (PlacementSpec({"CPU": 1}, label_selector=[{"zone": "b"}] * 2), 2, ["labels of label_selector", "(zone=b)"]),
        (PlacementSpec({"GPU": 1, "accelerator_type:A100": 0.001}), 1, ["1 GPU, type A100"]),
        (PlacementSpec({"memory": 5e9}), 1, ["5e+09 memory", "1e+09 memory"]),
    ],
)
def test_refuses_what_can_never_fit_and_describes_the_cluster(spec, size, fragments):
    small = {"CPU": 1.0, "memory": 1e9, "node:10.0.0.1": 1.0}
    here = cluster(NodeCapacity("a", small, {}, {"zone": "a"}), NodeCapacity("b", small, {}, {"zone": "b"}))
    problem = find_capacity_problem(spec, size, here)
    assert problem is not None
    assert "\n\nhint: " in problem
    assert "node:" not in problem
    for part in fragments:
        assert part in problem
    assert find_capacity_problem(spec, size, cluster(*here.nodes, grows=True)) is None


def test_does_not_refuse_what_is_only_busy():
    busy = cluster(node("a", free={}, CPU=2.0))
    assert find_capacity_problem(PlacementSpec({"CPU": 1}), 2, busy) is None
    assert find_capacity_problem(PlacementSpec({}), 1000, busy) is not None  # not a byte of memory is known of
    assert find_capacity_problem(PlacementSpec({}), 1000, cluster(node("a", memory=1e9))) is None


def test_a_validation_has_to_fit_beside_the_workers():
    workers = PlacementSpec({"CPU": 4})
    assert find_capacity_problem(workers, 2, MIXED, beside=PlacementSpec({"GPU": 1})) is None
    assert find_capacity_problem(PlacementSpec({"GPU": 0.5}), 3, MIXED, beside=PlacementSpec({"GPU": 0.5})) is None
    assert find_capacity_problem(PlacementSpec({"GPU": 0.5}), 3, MIXED, beside=PlacementSpec({"GPU": 1})) is not None
    problem = find_capacity_problem(workers, 2, MIXED, beside=PlacementSpec({"CPU": 1}))
    assert problem is not None
    assert "a validation with 1 CPU can never fit beside 2 workers with 4 CPU each" in problem
    packed, growing = PlacementSpec({"CPU": 4}, "STRICT_PACK"), cluster(*MIXED.nodes, grows=True)
    assert find_capacity_problem(packed, 1, MIXED, beside=workers) is None
    assert find_capacity_problem(workers, 2, growing, beside=PlacementSpec({"CPU": 1})) is None


def test_describes_what_it_waits_for():
    busy = cluster(node("a", free={"CPU": 1.0}, CPU=2.0), node("b", free={}, CPU=2.0))
    assert describe_wait(PlacementSpec({"CPU": 1}), 4, busy, {}) == (
        "waiting for capacity: requested 4 workers with 1 CPU each; "
        "the cluster has 2 nodes with 2 CPU each, of which others use 3 CPU"
    )
    assert "of which others use 1 CPU" in describe_wait(PlacementSpec({"CPU": 1}), 4, busy, {"b": 2})
    assert describe_wait(PlacementSpec({"CPU": 1}), 4, busy, {"a": 1, "b": 2}).endswith("2 nodes with 2 CPU each")
    growing = cluster(node("a", CPU=2.0), grows=True)
    assert describe_wait(PlacementSpec({"CPU": 1}), 4, growing, {}) == (
        "waiting for capacity: requested 4 workers with 1 CPU each; "
        "the cluster has 1 node with 2 CPU; the autoscaler is adding nodes"
    )


@pytest.mark.parametrize(
    ("selector", "labels", "is_match"),
    [
        ({"zone": "a"}, {"zone": "a"}, True),
        ({"zone": "a"}, {}, False),
        ({"zone": "!a"}, {"zone": "a"}, False),
        ({"zone": "!a"}, {}, True),
        ({"zone": "in(a, b)"}, {"zone": "b"}, True),
        ({"zone": "!in(a,b)"}, {"zone": "b"}, False),
        ({"zone": "!in(a,b)"}, {}, True),
        ({"zone": "a", "market": "spot"}, {"zone": "a"}, False),
        ({}, {}, True),
    ],
)
def test_nodes_are_chosen_by_labels(selector, labels, is_match):
    assert label_problem(selector) is None
    assert matches_selector(selector, labels) is is_match


@pytest.mark.parametrize("value", ["", "!", "a b", "in()", "in(a", "!!a", "a,b", "IN(a)", "x" * 64, 3])
def test_refuses_an_invalid_selector(value):
    assert "zone" in (label_problem({"zone": value}) or "")


def test_a_cluster_with_named_node_types_can_grow():
    assert has_named_types(["ray.head.default", "node_97aef81e"])
    assert not has_named_types(["node_97aef81ea8f9f658b06d3ae4335db7b905203022098244f15492d978", ""])
