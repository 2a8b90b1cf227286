"""A position is good for the data that it was taken from: other files, other rows and another order are noticed."""

import pytest

import paceline.data
from paceline.data import FileShuffleConfig


def state(dataset):
    iterator = dataset.iterator()
    next(iter(iterator.iter_batches(batch_size=2)))
    return iterator.get_state()


def numbers(**options):
    return paceline.data.range(24, **{"override_num_blocks": 4, **options})


ORDERS = {
    "as it is": numbers(),
    "other rows": paceline.data.range(25, override_num_blocks=4),
    "other units": numbers(override_num_blocks=6),
    "units, seed 1": numbers().randomize_block_order(seed=1),
    "units, seed 2": numbers().randomize_block_order(seed=2),
    "rows, seed 1": numbers().random_shuffle(seed=1),
    "rows, seed 2": numbers().random_shuffle(seed=2),
    "sorted": numbers().sort("id"),
    "sorted down": numbers().sort("id", descending=True),
    "fewer": numbers().limit(20),
}


@pytest.mark.parametrize("taken", ORDERS)
def test_a_position_is_refused_by_every_other_order_of_the_rows(taken):
    left = state(ORDERS[taken])
    for name, dataset in ORDERS.items():
        if name == taken:
            dataset.iterator().set_state(left)
        else:
            with pytest.raises(ValueError, match=r"has changed since .* or how they are shuffled"):
                dataset.iterator().set_state(left)


def test_whether_files_change_places_in_every_epoch_is_part_of_the_order(tmp_path):
    numbers().write_csv(str(tmp_path))
    shuffled = [FileShuffleConfig(seed=1, reseed_after_execution=every) for every in (True, False)]
    one, other = (paceline.data.read_csv(str(tmp_path), shuffle=config) for config in shuffled)
    with pytest.raises(ValueError, match=r"has changed since .* or how they are shuffled"):
        other.iterator().set_state(state(one))


def test_a_text_file_that_grew_is_noticed(tmp_path):
    """The number of its rows is not known before it is read."""
    file = tmp_path / "a.csv"
    file.write_text("x\n1\n2\n3\n")
    left = state(paceline.data.read_csv(str(file)))
    paceline.data.read_csv(str(file)).iterator().set_state(left)
    file.write_text("x\n1\n2\n3\n4\n")
    with pytest.raises(ValueError, match=r"has changed since .*: its files, their rows"):
        paceline.data.read_csv(str(file)).iterator().set_state(left)


def test_other_functions_are_no_other_data():
    """One may mend a transform and go on; whether it gives the same rows is for its author to know."""
    left = state(numbers().map_batches(lambda batch: {"id": batch["id"] + 1}))
    numbers().map_batches(lambda batch: {"id": batch["id"] * 2}).iterator().set_state(left)
