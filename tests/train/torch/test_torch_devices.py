"""What a worker computes on."""

import pytest
import torch

from paceline.train.torch import get_device, get_devices


def test_a_worker_without_gpus_computes_on_the_cpu(on_each):
    assert on_each(lambda: [str(get_device()), *map(str, get_devices())]) == [["cpu", "cpu"]] * 2


def test_a_worker_with_gpus_computes_on_those_it_was_given(as_worker):
    as_worker(devices=(2, 3))
    assert get_device() == torch.device("cuda:2")
    assert get_devices() == [torch.device("cuda:2"), torch.device("cuda:3")]


@pytest.mark.parametrize("function", [get_device, get_devices])
def test_outside_of_a_worker_there_is_no_device(function):
    with pytest.raises(RuntimeError, match=f"`{function.__name__}` cannot be used outside"):
        function()


def test_importing_the_names_does_not_import_torch(run_script):
    script = "import sys, paceline.train.torch; print('torch' in sys.modules)"
    assert run_script(script, env={"PACELINE_PREWARM": "0"}).stdout == "False\n"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: that a worker computes on its GPU was not checked")
def test_a_worker_finds_its_gpu(on_each):
    def function():
        device = get_device()
        return [str(device), torch.cuda.current_device(), torch.ones(3, device=device).sum().item()]

    assert on_each(function, 1, gpus_per_worker=1) == [["cuda:0", 0, 3.0]]
