"""Resumes at places of an epoch, taking turns. Arguments: directory, files, times, seconds between, places.

A place is a number from 0, the beginning of the epoch, to 1.
"""

import json
import sys
import time
from pathlib import Path

from _data import stacked

import paceline.data

BATCH = 1024

if __name__ == "__main__":
    directory, files, times, pause_s, *places = sys.argv[1:]
    dataset = paceline.data.read_parquet(files).map_batches(stacked, batch_format="numpy")
    num_batches = -(-dataset.count() // BATCH)
    wanted = {round(float(place) * num_batches): place for place in places}
    iterator = dataset.iterator()
    states = {wanted[0]: iterator.get_state()} if 0 in wanted else {}
    for number, _ in enumerate(iterator.iter_torch_batches(batch_size=BATCH), start=1):
        if number in wanted:
            states[wanted[number]] = iterator.get_state()
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
            time.sleep(float(pause_s))  # what was read ahead for this one is not to be in the way of the next
    Path(directory, "took.json").write_text(json.dumps(took))
