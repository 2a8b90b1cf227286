"""Join two tables and read the result in batches. Arguments: directory, files of both tables, epochs."""

import sys

from _data import time_epoch, write_result

import paceline.data

directory, left, right, epochs = sys.argv[1:]
context = paceline.data.DataContext.get_current()
context.execution_options.resource_limits.cpu = 2
# Each iteration of an iterator is an epoch of its own, which exchanges the rows again.
iterator = paceline.data.read_parquet(left).join(paceline.data.read_parquet(right), "inner").iterator()
write_result(directory, 0, [time_epoch(iterator.iter_batches(batch_size=65_536)) for _ in range(int(epochs))])
