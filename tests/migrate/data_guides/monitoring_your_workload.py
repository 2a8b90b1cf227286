"""Monitoring: progress bars, names of datasets, and statistics of each stage."""

import warnings

import ray

ctx = ray.data.DataContext.get_current()
with warnings.catch_warnings():
    warnings.simplefilter("error")
    ctx.enable_operator_progress_bars = False
    ctx.enable_progress_bars = False
    ctx.use_ray_tqdm = False
    ctx.enable_progress_bar_name_truncation = False
ctx.inline_below = 0


def pause(batch):
    return batch


ds = ray.data.range(1000).map_batches(pause, batch_size=10)
ds.set_name("monitored")
assert ds.name == "monitored" and "monitored" in ds.get_dataset_id()
iterator = ds.iterator()
assert sum(len(batch["id"]) for batch in iterator.iter_batches(batch_size=100)) == 1000
for stats in (ds.stats(), iterator.stats()):
    assert "pause" in stats and "1000 rows" in stats, stats
