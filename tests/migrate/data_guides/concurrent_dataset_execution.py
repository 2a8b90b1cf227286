"""Several datasets at once: each with a context of its own, in threads of its own."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import ray


def make_dataset(subcluster, num_rows):
    ctx = ray.data.DataContext.get_current().copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ctx.execution_options.label_selector = {"ray-subcluster": subcluster}
    with ray.data.DataContext.current(ctx):
        return ray.data.range(num_rows, override_num_blocks=4).map_batches(lambda batch: {"id": batch["id"] + 1})


datasets = [make_dataset("tenant_a", 1000), make_dataset("tenant_b", 2000)]
with ThreadPoolExecutor(2) as threads:
    assert [*threads.map(lambda ds: ds.materialize().sum("id"), datasets)] == [500500, 2001000]
