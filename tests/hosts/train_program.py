"""Trains the program of `tests/contracts` as a script on a host. Arguments: engine, storage path, files, workers.

It writes its account of the run as JSON beside the run.
"""

import json
import sys
from pathlib import Path

import cloudpickle

sys.path.append(str(Path(__file__).parents[1] / "contracts"))

import program


def main():
    engine, storage, files, num_workers = sys.argv[1:]
    cloudpickle.register_pickle_by_value(program)  # Only its own directory travels with a script.
    path = Path(storage)
    account = program.trained(path, Path(files), num_workers=int(num_workers), engine=engine)
    (path / "account.json").write_text(json.dumps(account))


if __name__ == "__main__":
    main()
