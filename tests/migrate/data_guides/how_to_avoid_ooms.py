"""How to avoid OOMs: small batches, memory of a stage, and settings of the context."""

import warnings

import numpy as np
import ray

ctx = ray.data.DataContext.get_current()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ctx.default_map_logical_memory_enabled = True
    ctx.isolate_read_workers = True
    ds = ray.data.range(1000).map_batches(lambda batch: batch, batch_size="auto", memory=1 << 30)
    assert ds.sum("id") == 499500
assert all("no effect" in str(warning.message) for warning in caught)
ctx.execution_options.resource_limits = ctx.execution_options.resource_limits.copy(object_store_memory=32 << 20)
ctx.target_max_block_size = 1 << 20
large = ray.data.range_tensor(2000, shape=(64, 64)).map_batches(lambda batch: {"mean": batch["data"].mean((1, 2))})
assert np.isclose(large.mean("mean"), 999.5)
