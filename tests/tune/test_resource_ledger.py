"""Who gets in: whole groups, never more than there is, and no trial that could run is kept out for ever."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._core.resource_planner import UNIT, PlacementNode, ResourceBundle, to_units
from paceline.tune.driver.resource_ledger import ResourceLedger, TrialNeeds


def needs(*bundles, explicit=True, strategy="PACK"):
    return TrialNeeds(tuple(bundles), explicit, strategy)


def gpus(*amounts):
    return needs(*(ResourceBundle(0, amount) for amount in amounts))


def machine(cores=4.0, num_gpus=2, **options):
    return ResourceLedger([PlacementNode("", cores, num_gpus)], shares_cores=True, **options)


def places(allocation):
    return [place.gpus for place in allocation.placements]


def test_a_fraction_goes_where_least_is_left_so_that_whole_gpus_stay_whole():
    ledger = machine(num_gpus=3)
    whole, half = ledger.allocate(gpus(1)), ledger.allocate(gpus(0.5))
    assert (places(whole), places(half)) == ([(0,)], [(1,)])
    ledger.release(whole)
    assert places(ledger.allocate(gpus(0.5))) == [(1,)]
    assert places(ledger.allocate(gpus(2))) == [(0, 2)]
    assert "the GPUs of a process must be below 1 or an integer, got 1.5" in ledger.find_refusal(gpus(1.5))


def test_a_trial_without_resources_gets_all_cores_alone_with_a_warning():
    ledger = machine(cores=2)
    small = ledger.allocate(needs(ResourceBundle(1), explicit=False))
    eight = needs(*[ResourceBundle(1)] * 8, explicit=False)
    assert ledger.find_refusal(eight) is None
    assert ledger.allocate(eight) is None
    ledger.release(small)
    allocation = ledger.allocate(eight)
    assert allocation.num_cores == 2
    assert "8 cores" in allocation.note
    assert "2 cores" in allocation.note
    assert ledger.allocate(needs(ResourceBundle(1), explicit=False)) is None
    ledger.release(allocation)
    assert ledger.allocate(needs(ResourceBundle(1), explicit=False)) is not None
    with pytest.raises(ValueError, match="already released"):
        ledger.release(allocation)


@pytest.mark.parametrize(
    ("asks", "says", "hint"),
    [
        (needs(*[ResourceBundle(2)] * 3), "needs 3 x (2 cores)", "lower num_workers"),
        (gpus(1, 1, 1), "needs 3 x (1 GPU)", "fraction"),
        (gpus(0.6, 0.6, 0.6), "needs 3 x (0.6 GPUs)", "lower num_workers"),
        (needs(ResourceBundle(9, 3), explicit=False), "3 GPUs", ""),
        (needs(ResourceBundle(1, 1), ResourceBundle(1, 1), ResourceBundle(5)), "2 x (1 core, 1 GPU) and 5 cores", ""),
        (needs(ResourceBundle(1, 0, (("special", 2.0),))), "1 core, 2 special", "lower"),
    ],
)
def test_what_never_fits_is_refused_with_the_numbers_and_a_way_out(asks, says, hint):
    told, _, way_out = machine().find_refusal(asks).partition("\n\nhint: ")
    assert says in told
    assert "this machine has 4 cores, 2 GPUs" in told
    assert hint in way_out
    assert machine().allocate(asks) is None


CLUSTER = [PlacementNode("a", 2), PlacementNode("b", 2), PlacementNode("g", 4, 2, {"special": 1.0})]


def test_places_each_bundle_on_one_node_and_cpu_bundles_off_gpu_nodes():
    ledger = ResourceLedger(CLUSTER, machine="the cluster")
    allocation = ledger.allocate(needs(ResourceBundle(2), ResourceBundle(2), ResourceBundle(1, 1)))
    assert [place.node for place in allocation.placements] == ["a", "b", "g"]
    assert ledger.find_refusal(needs(ResourceBundle(5))) is not None
    assert ledger.find_refusal(needs(*[ResourceBundle(1)] * 8)) is None
    assert "on one node" in ledger.find_refusal(needs(ResourceBundle(5)))
    assert ledger.describe() == "2 nodes with 2 cores each; 1 node with 4 cores, 2 GPUs, 1 special"


def test_what_others_use_keeps_trials_out_and_not_the_first_and_a_part_that_waits_too_long_keeps_nobody_out():
    ledger = ResourceLedger([PlacementNode("a", 2, in_use=ResourceBundle(1))])
    first = ledger.allocate(needs(ResourceBundle(2)))
    assert "waiting for resources that others use" in first.note
    ledger.release(first)
    assert ledger.allocate(needs(ResourceBundle(1))).note == ""
    assert ledger.allocate(needs(ResourceBundle(1))) is None
    ledger.update_nodes([PlacementNode("a", 2)], {})
    assert ledger.allocate(needs(ResourceBundle(1))) is not None
    ledger = ResourceLedger([PlacementNode("a", 2)])
    allocation = ledger.allocate(needs(ResourceBundle(2)))
    ledger.update_nodes([PlacementNode("a", 2)], {}, uncounted=[allocation.number])
    other = ledger.allocate(needs(ResourceBundle(2)))
    assert other is not None
    ledger.release(allocation)
    assert ledger.allocate(needs(ResourceBundle(1))) is None
    ledger.release(other)
    assert ledger.allocate(needs(ResourceBundle(2))) is not None


def test_a_part_counts_where_it_was_found_and_where_it_will_go_when_its_node_is_gone():
    ledger = ResourceLedger([PlacementNode("a", 2), PlacementNode("b", 2)])
    allocation = ledger.allocate(needs(ResourceBundle(1)))
    assert allocation.placements[0].node == "a"
    ledger.update_nodes([PlacementNode("a", 2), PlacementNode("b", 2)], {allocation.number: ["b"]})
    two = ledger.allocate(needs(ResourceBundle(2)))
    assert two.placements[0].node == "a"
    ledger.update_nodes([PlacementNode("a", 2), PlacementNode("c", 2)], {two.number: ["a"]})
    assert ledger.allocate(needs(ResourceBundle(2))) is None
    assert ledger.allocate(needs(ResourceBundle(1))).placements[0].node == "c"
    ledger.release(allocation)
    ledger.release(two)
    assert ledger.allocate(needs(ResourceBundle(2))).placements[0].node == "a"


def test_a_part_of_which_nothing_is_known_counts_where_there_is_room_and_one_of_an_autoscaler_once_it_is_there():
    ledger = ResourceLedger([PlacementNode("a", 2), PlacementNode("b", 2)])
    allocation = ledger.allocate(needs(ResourceBundle(2)))
    assert allocation.placements[0].node == "a"
    ledger.update_nodes([PlacementNode("a", 2, in_use=ResourceBundle(2)), PlacementNode("b", 2)], {})
    assert ledger.allocate(needs(ResourceBundle(1))) is None
    ledger.release(allocation)
    assert ledger.allocate(needs(ResourceBundle(2))).placements[0].node == "b"
    ledger = ResourceLedger([PlacementNode("a", 1)])
    allocation = ledger.allocate(needs(ResourceBundle(2)), overcommit=True)
    assert ledger.num_unplaced == 1
    assert ledger.allocate(needs(ResourceBundle(1))) is not None
    ledger.update_nodes([PlacementNode("a", 1), PlacementNode("n", 2)], {allocation.number: ["n"]})
    assert ledger.num_unplaced == 0
    assert ledger.allocate(needs(ResourceBundle(1))) is None


def test_many_workers_are_placed_without_recursion():
    ledger = ResourceLedger([PlacementNode(str(n), 64, 8) for n in range(50)])
    allocation = ledger.allocate(needs(*[ResourceBundle(1, 1)] * 350, *[ResourceBundle(2)] * 800, ResourceBundle(8)))
    assert allocation is not None
    ledger.release(allocation)


AMOUNTS = st.sampled_from([0, 0.1, 0.25, 0.3, 0.5, 0.6, 1, 2])
CORES = st.sampled_from([0, 0.5, 1, 2, 3])
BUNDLE = st.builds(ResourceBundle, CORES, AMOUNTS, st.sampled_from([(), (), (("special", 1.0),)]))
NEEDS = st.builds(
    TrialNeeds,
    st.lists(BUNDLE, min_size=1, max_size=4).map(tuple),
    st.booleans(),
    st.sampled_from(["PACK", "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
)
NODES = st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 2), st.booleans()), min_size=1, max_size=3).map(
    lambda drawn: [
        PlacementNode(str(index), cores, num_gpus, {"special": 1.0} if special else {})
        for index, (cores, num_gpus, special) in enumerate(drawn)
    ]
)


def room_with(nodes):
    return ResourceLedger(nodes, shares_cores=len(nodes) == 1)


def oversubscribed(nodes, allocations):
    """What is held beyond what there is, counted anew from the parts."""
    used = Counter()
    for allocation in allocations:
        for bundle, place in zip(allocation.bundles, allocation.placements, strict=True):
            used[place.node, "cores"] += to_units(bundle.num_cpus)
            for name, amount in bundle.others:
                used[place.node, name] += to_units(amount)
            assert len(place.gpus) == len({*place.gpus}) == (0 if not bundle.num_gpus else max(1, int(bundle.num_gpus)))
            for gpu in place.gpus:
                used[place.node, gpu] += min(UNIT, to_units(bundle.num_gpus))
    there = {
        (node.id, what): amount
        for node in nodes
        for what, amount in [
            ("cores", to_units(node.num_cores)),
            *((gpu, UNIT) for gpu in range(node.num_gpus)),
            *((name, to_units(amount)) for name, amount in node.others.items()),
        ]
    }
    return {key: amount for key, amount in used.items() if amount > there.get(key, 0)}


@settings(max_examples=120)
@given(NODES, st.data())
def test_in_any_sequence_nothing_is_given_twice_and_all_of_it_comes_back(nodes, data):
    ledger, allocations = room_with(nodes), []
    for _ in range(data.draw(st.integers(1, 12))):
        if allocations and data.draw(st.booleans()):
            ledger.release(allocations.pop(data.draw(st.integers(0, len(allocations) - 1))))
            continue
        asks = data.draw(NEEDS)
        allocation = ledger.allocate(asks)
        if allocation is None:
            assert allocations or ledger.find_refusal(asks) is not None, "one that fits an empty room was kept out"
            # It fits as soon as enough is freed, whatever the order: at the latest when nothing is held.
            if ledger.find_refusal(asks) is None and data.draw(st.booleans()):
                for other in data.draw(st.permutations(allocations)):
                    ledger.release(other)
                allocation, allocations = ledger.allocate(asks), []
                assert allocation is not None
        else:
            assert ledger.find_refusal(asks) is None
        allocations += [allocation] if allocation is not None else []
        assert not oversubscribed(nodes, allocations)
    for allocation in data.draw(st.permutations(allocations)):
        ledger.release(allocation)
    fresh = room_with(nodes)
    again = data.draw(NEEDS)
    first, second = ledger.allocate(again), fresh.allocate(again)
    assert (first and first.placements) == (second and second.placements)


def fits(nodes, asks):
    """Whether there is any way at all, by trying all of them."""
    ways = [
        [
            (node.id, chosen)
            for node in nodes
            for chosen in itertools.combinations(range(node.num_gpus), max(1, int(b.num_gpus)) if b.num_gpus else 0)
        ]
        for b in asks.bundles
    ]
    for way in itertools.product(*ways):
        on = [node for node, _ in way]
        if asks.strategy == "STRICT_PACK" and len({*on}) > 1:
            continue
        if asks.strategy == "STRICT_SPREAD" and len({*on}) < len(on):
            continue
        used = Counter()
        for bundle, (node, chosen) in zip(asks.bundles, way, strict=True):
            used[node, "cores"] += to_units(bundle.num_cpus)
            used[node, "special"] += sum(to_units(amount) for _, amount in bundle.others)
            used.update({(node, gpu): min(UNIT, to_units(bundle.num_gpus)) for gpu in chosen})
        there = {(node.id, "cores"): to_units(node.num_cores) for node in nodes}
        there |= {(node.id, "special"): to_units(node.others.get("special", 0)) for node in nodes}
        if all(amount <= there.get(key, UNIT) for key, amount in used.items()):
            return True
    return False


@settings(max_examples=120)
@given(NODES, NEEDS.map(lambda asks: TrialNeeds(asks.bundles, True, asks.strategy)))
def test_exactly_what_no_way_of_placing_could_fit_is_refused(nodes, asks):
    assert (room_with(nodes).find_refusal(asks) is None) == fits(nodes, asks)
    assert (room_with(nodes).allocate(asks) is None) == (not fits(nodes, asks))
