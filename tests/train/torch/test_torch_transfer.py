"""How batches move: everything that holds tensors is looked into, and on a GPU the next batch is under way early."""

import collections
import dataclasses
import types

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader

from paceline.data.batches.torch import move_batch
from paceline.train.torch import prepare_data_loader

META = torch.device("meta")
Pair = collections.namedtuple("Pair", "x y")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: how batches move to one was not checked")


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    name: str
    derived: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "derived", self.x + 1)


class Movable:
    def __init__(self, x):
        self.x = x

    def pin_memory(self):
        return Movable(self.x.pin_memory())

    def to(self, device, non_blocking=False):
        return Movable(self.x.to(device, non_blocking=non_blocking))


class Rows:
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {"x": torch.full((1 << 20,), float(index)), "opaque": Movable(torch.full((1 << 20,), float(index)))}


def tensor():
    return torch.arange(3.0)


@pytest.mark.parametrize(
    ("batch", "tensors"),
    [
        (tensor(), lambda moved: [moved]),
        ({"a": tensor(), "b": {"c": tensor()}}, lambda moved: [moved["a"], moved["b"]["c"]]),
        ([tensor(), (tensor(), [tensor()])], lambda moved: [moved[0], moved[1][0], moved[1][1][0]]),
        (Pair(tensor(), [tensor()]), lambda moved: [moved.x, moved.y[0]]),
        (Sample(tensor(), "a"), lambda moved: [moved.x, moved.derived]),
        (Movable(tensor()), lambda moved: [moved.x]),
        (collections.defaultdict(list, a=[tensor()]), lambda moved: [moved["a"][0]]),
        (types.MappingProxyType({"a": tensor()}), lambda moved: [moved["a"]]),
        (pack_sequence([tensor()]), lambda moved: [moved.data]),
    ],
    ids=lambda case: type(case).__name__,
)
def test_tensors_move_and_what_holds_them_keeps_its_type(batch, tensors):
    for non_blocking in (False, True):
        result = move_batch(batch, META, non_blocking=non_blocking)
        assert type(result) is type(batch)
        assert {found.device for found in tensors(result)} == {META}
        assert {found.device.type for found in tensors(batch)} == {"cpu"}


def test_what_is_no_tensor_is_kept():
    assert move_batch(collections.defaultdict(list, a=tensor()), META).default_factory is list
    assert move_batch(Sample(tensor(), "a"), META).name == "a"
    for item in ("text", b"bytes", 3, None, Sample, range(3)):
        assert move_batch(item, META) is item


@needs_gpu
@pytest.mark.parametrize("auto_transfer", [True, False])
@pytest.mark.parametrize("pin_memory", [True, False])
def test_batches_arrive_whole_on_the_gpu_however_late_they_are_read(on_each, auto_transfer, pin_memory):
    """Each batch is read by work that is begun long before it is done, and let go of meanwhile."""

    def function():
        loader = DataLoader(Rows(), batch_size=None, pin_memory=pin_memory)
        prepared = prepare_data_loader(loader, auto_transfer=auto_transfer)
        seen = []
        for _ in range(2):
            for batch in prepared:
                assert batch["x"].device == batch["opaque"].x.device == torch.device("cuda:0")
                torch.cuda._sleep(20_000_000)
                seen.append(
                    torch.stack([batch["x"].min(), batch["x"].max(), batch["opaque"].x.min(), batch["opaque"].x.max()])
                )
        return torch.stack(seen).tolist()

    expected = [[float(index)] * 4 for index in range(24)] * 2
    assert on_each(function, 1, gpus_per_worker=1) == [expected]


@needs_gpu
def test_a_batch_is_read_on_the_gpu_when_it_has_arrived_and_an_epoch_left_early_leaves_the_next_whole(on_each):
    def function():
        # In pinned memory to begin with, so that nothing but the copy takes time.
        rows = [torch.full((1 << 24,), float(index)).pin_memory() for index in range(6)]
        prepared = prepare_data_loader(DataLoader(rows, batch_size=None))
        next(iter(prepared))
        return torch.stack([torch.stack([row.min(), row.max()]) for _ in range(3) for row in prepared]).tolist()

    assert on_each(function, 1, gpus_per_worker=1) == [[[float(index)] * 2 for index in range(6)] * 3]


@needs_gpu
@pytest.mark.parametrize("pin_memory", [True, False])
def test_on_a_gpu_the_next_batch_is_copied_from_pinned_memory_while_one_is_used(on_each, pin_memory):
    def function():
        from paceline.data.batches import torch as batches

        were_pinned, move = [], batches.move_batch

        def moved(batch, device, **options):
            were_pinned.append(batch["x"].is_pinned())
            return move(batch, device, **options)

        batches.move_batch = moved
        rows = [{"x": torch.full((1 << 22,), float(index)), "there": torch.ones(1).cuda()} for index in range(4)]
        prepared = prepare_data_loader(DataLoader(rows, batch_size=None, pin_memory=False))
        if pin_memory:
            rows = [{"x": row["x"].pin_memory(), "there": row["there"]} for row in rows]
            prepared = prepare_data_loader(DataLoader(rows, batch_size=None))
        beside, current = batches._copy_stream(torch.device("cuda:0")), torch.cuda.current_stream()
        torch.ones(8, device="cuda").mean()  # Loads the kernel, which waits for all streams the first time.
        torch.cuda.synchronize()
        arrived_early, sums = [], []
        for row in prepared:
            torch.cuda._sleep(int(2e8))  # some 100 ms
            sums.append(row["x"].mean())
            while not beside.query() and not current.query():
                pass
            arrived_early.append(not current.query())
        batches.move_batch = move
        return [arrived_early, were_pinned, torch.stack(sums).tolist()]

    assert on_each(function, 1, gpus_per_worker=1) == [[[True] * 4, [True] * 4, [0.0, 1.0, 2.0, 3.0]]]
