"""What a prepared loader lets its worker wait is known as such."""

import time

import pytest
from torch.utils.data import DataLoader, Dataset

from paceline._core import spending
from paceline._core.spending import DATA, OWN, Spending
from paceline.train.torch import prepare_data_loader


class Slow(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(0.05)
        return index


@pytest.fixture
def clock():
    made = Spending()
    spending.enter(made)
    yield made
    spending.leave(made)


def test_time_until_a_batch_is_there_is_spent_on_data_and_the_rest_is_not(as_worker, clock):
    as_worker()
    loader = prepare_data_loader(DataLoader(Slow(), batch_size=2), add_dist_sampler=False)
    with clock.at(OWN):
        for _ in loader:
            time.sleep(0.1)
    _, sums = clock.read()
    assert sums[DATA] >= 0.2
    assert sums[OWN] >= 0.2
