"""Resumes at several positions of an epoch, in turns. Arguments: directory, files, times, seconds between, positions.

A position is a number from 0, the beginning of the epoch, to 1.
"""

import json
import sys
import time
from pathlib import Path

from _data import stack_columns

import paceline.data

BATCH = 1024

if __name__ == "__main__":
    directory, files, times, pause_s, *places = sys.argv[1:]
    dataset = paceline.data.read_parquet(files).map_batches(stack_columns, batch_format="numpy")
    num_batches = -(-dataset.count() // BATCH)
    place_at = {round(float(place) * num_batches): place for place in places}
    iterator = dataset.iterator()
    states = {place_at[0]: iterator.get_state()} if 0 in place_at else {}
    for number, _ in enumerate(iterator.iter_torch_batches(batch_size=BATCH), start=1):
        if number in place_at:
            states[place_at[number]] = iterator.get_state()
    took = {place: [] for place in places}
    for _ in range(int(times)):
        for place in places:
            iterator = dataset.iterator()
            iterator.set_state(states[place])
            began = time.perf_counter()
            batches = iter(iterator.iter_torch_batches(batch_size=BATCH))
            next(batches)
            took[place].append(time.perf_counter() - began)
            batches.close()
            time.sleep(float(pause_s))  # let read-ahead finish before the next one
    Path(directory, "took.json").write_text(json.dumps(took))
