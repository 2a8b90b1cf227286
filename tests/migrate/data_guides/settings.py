"""Settings that the pages teach: what has an effect, what warns that it has none, and errors of functions."""

import warnings

import ray

ctx = ray.data.DataContext.get_current()
ctx.execution_options.preserve_order = True
ctx.execution_options.resource_limits = ray.data.ExecutionResources(cpu=1)
ctx.execution_options.resource_limits = ctx.execution_options.resource_limits.copy(object_store_memory=32 << 20)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    ctx.raise_original_map_exception = True
    ctx.verbose_stats_logs = ctx.enable_progress_bars = ctx.use_ray_tqdm = False
    ctx.enable_operator_progress_bars = ctx.enable_progress_bar_name_truncation = False
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ctx.max_errored_blocks = 1
    ctx.default_map_logical_memory_enabled = ctx.isolate_read_workers = True
    ctx.use_polars_sort = True
    ctx.read_op_min_num_blocks = 4
    ctx.execution_options.label_selector = {"ray-subcluster": "tenant_a"}
assert all("no effect" in str(warning.message) for warning in caught)
assert ["on_error='skip'" in str(warning.message) for warning in caught].count(True) == 1
ds = ray.data.range(1000).map_batches(lambda batch: batch, batch_size="auto", memory=1 << 30, num_cpus=0.5)
assert ds.sort("id", descending=True).take(1) == [{"id": 999}]
failing = ray.data.range(5).map(lambda row: {"id": row["id"], "part": 1 / row["id"]})
try:
    failing.take_all()
except ZeroDivisionError:
    pass
else:
    raise AssertionError("a row fails")
copied = ctx.copy()
copied.target_max_block_size = 1 << 20
with ray.data.DataContext.current(copied):
    assert ray.data.DataContext.get_current().target_max_block_size == 1 << 20
assert ctx.target_max_block_size == 128 << 20
