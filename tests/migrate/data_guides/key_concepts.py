"""Key concepts: nothing runs before rows are needed, and stages of several kinds make one pipeline."""

import ray

calls = []
ds = ray.data.range(100).add_column("test", lambda frame: frame["id"] + 1).select_columns("test")
seen = ds.map(lambda row: calls.append(row) or row)
assert calls == [] and seen.take(2) == [{"test": 1}, {"test": 2}] and calls


class Offset:
    def __init__(self, offset=0):
        self.offset = offset

    def __call__(self, row):
        return {"id": row["id"] + self.offset}


pipeline = (
    ray.data.range(1000)
    .map(lambda row: {"id": row["id"] * 2}, num_cpus=1)
    .map(Offset, fn_constructor_kwargs={"offset": 1}, compute=ray.data.ActorPoolStrategy(size=1))
    .map(lambda row: {**row, "big": row["id"] > 10})
    .filter(lambda row: row["big"])
)
assert pipeline.count() == 995 and pipeline.take(1) == [{"id": 11, "big": True}]
