"""Weighted mixing: proportions, equal blocks, a shuffle afterwards, and when it ends."""

import numpy as np
import ray
from ray.data import MixStoppingCondition

web = ray.data.from_items([{"x": 1} for _ in range(750)]).map(lambda row: row)
code = ray.data.from_items([{"x": 2} for _ in range(250)]).map(lambda row: row)
mixed = web.mix(code, weights=[0.75, 0.25])
assert mixed.count() == 1000
assert all((batch["x"] == 2).sum() == 25 for batch in mixed.iter_batches(batch_size=100))
web, code = (each.repartition(target_num_rows_per_block=128) for each in (web, code))
shuffled = web.mix(code, weights=[0.75, 0.25]).map_batches(
    lambda table: table.take(np.random.permutation(len(table))), batch_size=1024, batch_format="pyarrow"
)
assert shuffled.sum("x") == 750 + 2 * 250
short = web.mix(code, weights=[0.5, 0.5], stopping_condition=MixStoppingCondition.STOP_ON_SHORTEST)
assert 500 <= short.count() <= 501
assert web.mix(code, stopping_condition=MixStoppingCondition.STOP_ON_LONGEST_DROP).count() == 1000
