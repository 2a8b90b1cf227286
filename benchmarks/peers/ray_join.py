"""Ray Data with two cores. Arguments: directory, files of the left and the right table, epochs."""

import sys
from pathlib import Path

import ray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _data import time_epoch, write_result

directory, left, right, epochs = sys.argv[1:]
ray.init(num_cpus=2, include_dashboard=False)
joined = ray.data.read_parquet(left).join(ray.data.read_parquet(right), join_type="inner", num_partitions=8)
write_result(directory, 0, [time_epoch(joined.iter_batches(batch_size=65_536)) for _ in range(int(epochs))])
