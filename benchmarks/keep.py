"""Copy results to `benchmarks/results/DATE-NAME.json`, and update the tables and plots of the docs.

Argument: a name for the machine, `two-cores`. The source is `benchmarks/out/results.json` unless `--results` is given.
Results with failures are refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import short_table
import table
from _circumstances import ROOT
from _measure import HERE, OUT


def keep_results(results: Path, name: str) -> list[str]:
    """Return the written files, relative to the repository's root."""
    import plots  # Imported here because matplotlib is slow to import.

    document = json.loads(results.read_text())
    if document["failed"]:
        raise ValueError(f"{', '.join(document['failed'])} failed: these results are not kept")
    path = HERE / "results" / f"{document['date'][:10]}-{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(results.read_text())
    table.main([str(path)])
    short_table.main([str(path)])
    written = [path, table.PAGE, short_table.PAGE, *plots.write_plots(document, plots.IMAGES)]
    return [str(one.relative_to(ROOT)) for one in written]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--results", type=Path, default=OUT / "results.json")
    options = parser.parse_args()
    try:
        print("kept: " + ", ".join(keep_results(options.results, options.name)))
    except (OSError, ValueError) as problem:
        sys.exit(str(problem))
