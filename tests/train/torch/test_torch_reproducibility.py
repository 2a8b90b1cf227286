"""The same numbers in each run."""

import pytest

from paceline.train.torch import enable_reproducibility


def test_runs_draw_the_same_numbers_and_use_deterministic_algorithms(on_each):
    def function(seed):
        import os
        import random

        import numpy
        import torch

        enable_reproducibility(seed)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.benchmark
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        return [random.random(), float(numpy.random.rand()), torch.rand(1).item()]

    first, other = on_each(lambda: function(7)), on_each(lambda: function((1 << 63) - 1))
    assert first == on_each(lambda: function(7))
    assert first[0] == first[1], "ranks start from the same model"
    assert not set(first[0]) & set(other[0])


@pytest.mark.parametrize("imported_before", [False, True])
def test_compiled_code_is_deterministic_too(on_each, imported_before):
    def function():
        import sys

        import torch

        if imported_before:
            import torch._inductor.config
        imported = "torch._inductor.config" in sys.modules
        enable_reproducibility()
        assert ("torch._inductor.config" in sys.modules) is imported, "it takes seconds to import"
        import torch._inductor.config

        assert torch._inductor.config.deterministic

    on_each(function, 1)


@pytest.mark.parametrize("seed", [1 << 63, 0.5])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(ValueError, match=f"seed must be an integer from 0 .*, got {seed!r}"):
        enable_reproducibility(seed)
