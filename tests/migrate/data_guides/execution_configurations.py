"""Execution configurations: options, the context, and errors of functions."""

import warnings

import ray

ctx = ray.data.DataContext.get_current()
ctx.execution_options.preserve_order = True
ctx.execution_options.resource_limits = ray.data.ExecutionResources(cpu=1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ctx.raise_original_map_exception = True
    ctx.verbose_stats_logs = False
    ctx.max_errored_blocks = 1
assert ["on_error='skip'" in str(warning.message) for warning in caught] == [True]
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
