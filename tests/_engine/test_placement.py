"""Placement on a cluster: ranks by node, then by device, and the devices each worker sees."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._engine.base import WorkerSpec
from paceline._engine.messages import WorkerInit
from paceline._engine.ray.node_agent import ActorPlacement
from paceline._engine.ray.placement import PlacementSpec, order_ranks, place_workers

CPU = PlacementSpec({"CPU": 1})


def placement(node, *gpus, num_cores=8):
    return ActorPlacement(node, f"10.0.0.{node}", f"host-{node}", pid=1, num_cores=num_cores, gpus=gpus)


def spec(rank, size):
    begin = WorkerInit("run", "run", 1, rank, size, rank, size, 0, first_seq=0, num_threads=1)
    return WorkerSpec(begin, "/nowhere", {"CUDA_VISIBLE_DEVICES": "of the driver"})


def place_all(places, placement_spec=CPU, home=""):
    """Places in the order of ranks, and the spec of each worker."""
    places = [places[index] for index in order_ranks(places, home)]
    return places, place_workers([spec(rank, len(places)) for rank in range(len(places))], places, placement_spec)


@st.composite
def placements(draw):
    """As Ray may place workers: in any order, with devices of their own or shared ones."""
    per_worker = draw(st.sampled_from([0, 0.5, 1, 2]))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    places = []
    for node, size in enumerate(sizes):
        devices = draw(st.permutations([str(index) for index in range(12)]))
        for worker in range(size):
            if per_worker == 0.5:
                gpus = [devices[worker // 2]]
            else:
                gpus = devices[worker * per_worker : (worker + 1) * per_worker]
            places.append(placement(str(node), *gpus))
    return draw(st.permutations(places))


@settings(max_examples=200, deadline=None)
@given(placements(), st.sampled_from(["", "0", "1"]))
def test_ranks_go_by_node_and_local_ranks_count_within_one(places, home):
    places, workers = place_all(places, home=home)
    begins = [worker.begin for worker in workers]
    nodes = list(dict.fromkeys(place.node_id for place in places))
    assert [begin.node_rank for begin in begins] == sorted(begin.node_rank for begin in begins)
    assert [nodes[begin.node_rank] for begin in begins] == [place.node_id for place in places]
    assert {begin.num_nodes for begin in begins} == {len(nodes)}
    for node in nodes:
        here = [begin for begin, place in zip(begins, places, strict=True) if place.node_id == node]
        assert [begin.local_rank for begin in here] == list(range(len(here)))
        assert {begin.local_world_size for begin in here} == {len(here)}
        assert {begin.node_address for begin in here} == {f"10.0.0.{node}"}
    if home in nodes:
        assert nodes[0] == home


@settings(max_examples=200, deadline=None)
@given(placements())
def test_workers_of_a_node_see_its_gpus_alike_and_each_knows_which_are_its_own(places):
    places, workers = place_all(places)
    for place, worker in zip(places, workers, strict=True):
        visible = [gpu for gpu in worker.env["CUDA_VISIBLE_DEVICES"].split(",") if gpu]
        of_the_run = {gpu for other in places if other.node_id == place.node_id for gpu in other.gpus}
        assert visible == sorted(of_the_run, key=int)
        assert sorted(visible[index] for index in worker.begin.devices) == sorted(place.gpus)
    for one, other in zip(range(len(places)), range(1, len(places)), strict=False):
        if places[one].node_id == places[other].node_id:
            assert workers[one].begin.devices <= workers[other].begin.devices


@settings(max_examples=100, deadline=None)
@given(placements(), st.randoms())
def test_ranks_follow_from_placements_alone(places, random):
    """Actors that answer in another order, on the same nodes and devices, come to the same ranks."""
    if places[0].gpus and len({(place.node_id, place.gpus) for place in places}) == len(places):
        first, _ = place_all(places)
        on_nodes = {node: [p for p in first if p.node_id == node] for node in dict.fromkeys(p.node_id for p in first)}
        shuffled = [place for here in on_nodes.values() for place in random.sample(here, len(here))]
        assert place_all(shuffled)[0] == first


def test_the_node_of_the_driver_has_the_first_ranks_and_the_others_go_by_their_first_bundle():
    places = [placement("b"), placement("a"), placement("b"), placement("c")]
    assert order_ranks(places) == [0, 2, 1, 3]
    assert order_ranks(places, "c") == [3, 0, 2, 1]
    assert order_ranks(places, "elsewhere") == [0, 2, 1, 3]


def test_devices_are_in_the_order_of_their_numbers_and_named_ones_in_that_of_their_names():
    assert order_ranks([placement("a", "10"), placement("a", "9"), placement("a", "0")]) == [2, 1, 0]
    places, workers = place_all([placement("a", "GPU-b"), placement("a", "GPU-a")])
    assert [place.gpus for place in places] == [("GPU-a",), ("GPU-b",)]
    assert [worker.begin.devices for worker in workers] == [(0,), (1,)]
    _, workers = place_all([placement("a", "3", "0"), placement("a", "1", "2")])
    assert [worker.begin.devices for worker in workers] == [(0, 3), (1, 2)]


@pytest.mark.parametrize(
    ("spec", "threads", "variable"),
    [
        (PlacementSpec({"CPU": 1}), 4, "4"),
        (PlacementSpec({"CPU": 3}), 3, "3"),
        (PlacementSpec({"CPU": 3}, env={"OMP_NUM_THREADS": "7"}), 7, "7"),
        (PlacementSpec({"CPU": 3}, env={"OMP_NUM_THREADS": "4,2"}), 4, "4,2"),
        (PlacementSpec({}, env={"OMP_NUM_THREADS": "7"}, runtime_env={"env_vars": {"OMP_NUM_THREADS": "5"}}), 5, "5"),
        (PlacementSpec({}, env={"OMP_NUM_THREADS": "many"}), 4, "many"),
    ],
)
def test_threads_are_set_requested_or_a_fair_share_of_the_node(spec, threads, variable):
    _, workers = place_all([placement("a"), placement("a")], spec)
    assert {worker.begin.num_threads for worker in workers} == {threads}
    assert {worker.env["OMP_NUM_THREADS"] for worker in workers} == {variable}


def test_a_bundle_always_requests_something():
    assert PlacementSpec({"CPU": 0, "GPU": 0}).bundle == {"memory": 1.0}
    spec = PlacementSpec({"CPU": 2, "GPU": 0.5, "memory": 1e9, "special": 1, "other": 0})
    assert spec.bundle == {"CPU": 2, "GPU": 0.5, "memory": 1e9, "special": 1}


def test_selectors_are_for_all_workers_or_one_for_each():
    assert PlacementSpec({}).bundle_selectors(2) == [{}, {}]
    assert PlacementSpec({}, label_selector={"zone": "a"}).bundle_selectors(2) == [{"zone": "a"}] * 2
    assert PlacementSpec({}, label_selector=[{"zone": "a"}, {}]).bundle_selectors(2) == [{"zone": "a"}, {}]
