"""Who gets in: whole groups, never more than there is, and no trial that could run is kept out for ever."""

import itertools
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.tune.drive.admission import Room
from paceline.tune.drive.packing import UNIT, Node, units
from paceline.tune.trainables.planned import Bundle, TrialNeeds


def needs(*bundles, explicit=True, strategy="PACK"):
    return TrialNeeds(tuple(bundles), explicit, strategy)


def gpus(*amounts):
    return needs(*(Bundle(0, amount) for amount in amounts))


def machine(cores=4.0, num_gpus=2, **options):
    return Room([Node("", cores, num_gpus)], shares_cores=True, **options)


def places(part):
    return [place.gpus for place in part.places]


def test_a_fraction_goes_where_least_is_left_so_that_whole_gpus_stay_whole():
    room = machine(num_gpus=3)
    whole, half = room.take(gpus(1)), room.take(gpus(0.5))
    assert (places(whole), places(half)) == ([(0,)], [(1,)])
    room.free(whole)
    assert places(room.take(gpus(0.5))) == [(1,)]
    assert places(room.take(gpus(2))) == [(0, 2)]
    assert "1.5 GPUs in one process, which is neither below 1 nor a whole number" in room.refusal(gpus(1.5))


def test_a_trial_that_did_not_say_has_all_cores_alone_and_is_told_so():
    room = machine(cores=2)
    small = room.take(needs(Bundle(1), explicit=False))
    eight = needs(*[Bundle(1)] * 8, explicit=False)
    assert room.refusal(eight) is None
    assert room.take(eight) is None
    room.free(small)
    part = room.take(eight)
    assert part.num_cores == 2
    assert "8 cores" in part.note
    assert "2 cores" in part.note
    assert room.take(needs(Bundle(1), explicit=False)) is None
    room.free(part)
    assert room.take(needs(Bundle(1), explicit=False)) is not None
    with pytest.raises(ValueError, match="freed already"):
        room.free(part)


@pytest.mark.parametrize(
    ("asks", "says", "hint"),
    [
        (needs(*[Bundle(2)] * 3), "needs 3 x (2 cores)", "lower num_workers"),
        (gpus(1, 1, 1), "needs 3 x (1 GPU)", "fraction"),
        (gpus(0.6, 0.6, 0.6), "needs 3 x (0.6 GPUs)", "lower num_workers"),
        (needs(Bundle(9, 3), explicit=False), "3 GPUs", ""),
        (needs(Bundle(1, 1), Bundle(1, 1), Bundle(5)), "needs 2 x (1 core, 1 GPU) and 5 cores", ""),
        (needs(Bundle(1, 0, (("special", 2.0),))), "1 core, 2 special", "lower"),
    ],
)
def test_what_never_fits_is_refused_with_the_numbers_and_a_way_out(asks, says, hint):
    told, _, way_out = machine().refusal(asks).partition("\n\nhint: ")
    assert says in told
    assert "this machine has 4 cores, 2 GPUs" in told
    assert hint in way_out
    assert machine().take(asks) is None


CLUSTER = [Node("a", 2), Node("b", 2), Node("g", 4, 2, {"special": 1.0})]


def test_each_bundle_lies_on_one_node_and_cores_are_taken_where_there_are_no_gpus():
    room = Room(CLUSTER, where="the cluster")
    part = room.take(needs(Bundle(2), Bundle(2), Bundle(1, 1)))
    assert [place.node for place in part.places] == ["a", "b", "g"]
    assert room.refusal(needs(Bundle(5))) is not None
    assert room.refusal(needs(*[Bundle(1)] * 8)) is None
    assert "on one node" in room.refusal(needs(Bundle(5)))
    assert room.described() == "2 nodes with 2 cores each; 1 node with 4 cores, 2 GPUs, 1 special"


def test_what_others_use_keeps_trials_out_and_not_the_first_and_a_part_that_waits_too_long_keeps_nobody_out():
    room = Room([Node("a", 2, in_use=Bundle(1))])
    first = room.take(needs(Bundle(2)))
    assert "others use what it needs" in first.note
    room.free(first)
    assert room.take(needs(Bundle(1))).note == ""
    assert room.take(needs(Bundle(1))) is None
    room.look([Node("a", 2)], {})
    assert room.take(needs(Bundle(1))) is not None
    room = Room([Node("a", 2)])
    part = room.take(needs(Bundle(2)))
    room.look([Node("a", 2)], {}, uncounted=[part.number])
    other = room.take(needs(Bundle(2)))
    assert other is not None
    room.free(part)
    assert room.take(needs(Bundle(1))) is None
    room.free(other)
    assert room.take(needs(Bundle(2))) is not None


def test_a_part_counts_where_it_was_found_and_where_it_will_go_when_its_node_is_gone():
    room = Room([Node("a", 2), Node("b", 2)])
    part = room.take(needs(Bundle(1)))
    assert part.places[0].node == "a"
    room.look([Node("a", 2), Node("b", 2)], {part.number: ["b"]})
    two = room.take(needs(Bundle(2)))
    assert two.places[0].node == "a"
    room.look([Node("a", 2), Node("c", 2)], {two.number: ["a"]})
    assert room.take(needs(Bundle(2))) is None
    assert room.take(needs(Bundle(1))).places[0].node == "c"
    room.free(part)
    room.free(two)
    assert room.take(needs(Bundle(2))).places[0].node == "a"


def test_a_part_of_which_nothing_is_known_counts_where_there_is_room_and_one_of_an_autoscaler_once_it_is_there():
    room = Room([Node("a", 2), Node("b", 2)])
    part = room.take(needs(Bundle(2)))
    assert part.places[0].node == "a"
    room.look([Node("a", 2, in_use=Bundle(2)), Node("b", 2)], {})
    assert room.take(needs(Bundle(1))) is None
    room.free(part)
    assert room.take(needs(Bundle(2))).places[0].node == "b"
    room = Room([Node("a", 1)])
    part = room.take(needs(Bundle(2)), beyond=True)
    assert room.num_nowhere == 1
    assert room.take(needs(Bundle(1))) is not None
    room.look([Node("a", 1), Node("n", 2)], {part.number: ["n"]})
    assert room.num_nowhere == 0
    assert room.take(needs(Bundle(1))) is None


def test_many_workers_are_placed_without_recursion():
    room = Room([Node(str(n), 64, 8) for n in range(50)])
    part = room.take(needs(*[Bundle(1, 1)] * 350, *[Bundle(2)] * 800, Bundle(8)))
    assert part is not None
    room.free(part)


AMOUNTS = st.sampled_from([0, 0.1, 0.25, 0.3, 0.5, 0.6, 1, 2])
CORES = st.sampled_from([0, 0.5, 1, 2, 3])
BUNDLE = st.builds(Bundle, CORES, AMOUNTS, st.sampled_from([(), (), (("special", 1.0),)]))
NEEDS = st.builds(
    TrialNeeds,
    st.lists(BUNDLE, min_size=1, max_size=4).map(tuple),
    st.booleans(),
    st.sampled_from(["PACK", "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
)
NODES = st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 2), st.booleans()), min_size=1, max_size=3).map(
    lambda drawn: [
        Node(str(index), cores, num_gpus, {"special": 1.0} if special else {})
        for index, (cores, num_gpus, special) in enumerate(drawn)
    ]
)


def room_with(nodes):
    return Room(nodes, shares_cores=len(nodes) == 1)


def oversubscribed(nodes, held):
    """What is held beyond what there is, counted anew from the parts."""
    used = Counter()
    for part in held:
        for bundle, place in zip(part.bundles, part.places, strict=True):
            used[place.node, "cores"] += units(bundle.num_cpus)
            for name, amount in bundle.others:
                used[place.node, name] += units(amount)
            assert len(place.gpus) == len({*place.gpus}) == (0 if not bundle.num_gpus else max(1, int(bundle.num_gpus)))
            for gpu in place.gpus:
                used[place.node, gpu] += min(UNIT, units(bundle.num_gpus))
    there = {
        (node.id, what): amount
        for node in nodes
        for what, amount in [
            ("cores", units(node.num_cores)),
            *((gpu, UNIT) for gpu in range(node.num_gpus)),
            *((name, units(amount)) for name, amount in node.others.items()),
        ]
    }
    return {key: amount for key, amount in used.items() if amount > there.get(key, 0)}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(NODES, st.data())
def test_in_any_sequence_nothing_is_given_twice_and_all_of_it_comes_back(nodes, data):
    room, held = room_with(nodes), []
    for _ in range(data.draw(st.integers(1, 12))):
        if held and data.draw(st.booleans()):
            room.free(held.pop(data.draw(st.integers(0, len(held) - 1))))
            continue
        asks = data.draw(NEEDS)
        part = room.take(asks)
        if part is None:
            assert held or room.refusal(asks) is not None, "one that fits an empty room was kept out of it"
            # It fits as soon as enough is freed, whatever the order: at the latest when nothing is held.
            if room.refusal(asks) is None and data.draw(st.booleans()):
                for other in data.draw(st.permutations(held)):
                    room.free(other)
                part, held = room.take(asks), []
                assert part is not None
        else:
            assert room.refusal(asks) is None
        held += [part] if part is not None else []
        assert not oversubscribed(nodes, held)
    for part in data.draw(st.permutations(held)):
        room.free(part)
    fresh = room_with(nodes)
    again = data.draw(NEEDS)
    first, second = room.take(again), fresh.take(again)
    assert (first and first.places) == (second and second.places)


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
            used[node, "cores"] += units(bundle.num_cpus)
            used[node, "special"] += sum(units(amount) for _, amount in bundle.others)
            used.update({(node, gpu): min(UNIT, units(bundle.num_gpus)) for gpu in chosen})
        there = {(node.id, "cores"): units(node.num_cores) for node in nodes}
        there |= {(node.id, "special"): units(node.others.get("special", 0)) for node in nodes}
        if all(amount <= there.get(key, UNIT) for key, amount in used.items()):
            return True
    return False


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(NODES, NEEDS.map(lambda asks: TrialNeeds(asks.bundles, True, asks.strategy)))
def test_exactly_what_no_way_of_placing_could_fit_is_refused(nodes, asks):
    assert (room_with(nodes).refusal(asks) is None) == fits(nodes, asks)
    assert (room_with(nodes).take(asks) is None) == (not fits(nodes, asks))
