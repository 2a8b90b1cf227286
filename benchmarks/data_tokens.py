"""How many tokens a second do two workers receive from text?

JSON lines of short stories, tokenized with a BPE of 1,000 tokens and packed to rows of 512, as
`examples/tokenize_text.py` does: files in another order in each epoch, rows shuffled in windows. The floor is two
processes that tokenize and pack their own files in order, the peer a torch DataLoader with two workers. Each process
tokenizes with one thread.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from _delivery import LOADER, PLAIN, TIMEOUT_S, epoch_seconds
from _measure import Bar, Bench, Measure, Report, check, main, python, read_rank_results

EPOCHS = 3
"""The first also starts processes and fills caches, so the best of the others counts."""


def measure(bench: Bench) -> Report:
    from _tokens import LENGTH  # loads the tokenizers, and the example on its path
    from tokenize_text import text_at, tokenizer_at

    files = text_at(bench.storage / "text", bench.options.documents)
    tokenizer = tokenizer_at(bench.storage / "tokenizer.json", files)
    rates: dict[str, list[float]] = defaultdict(list)
    sums: list[float] = []
    for _ in bench.rounds():
        for name, script, size in (
            ("ours", ("ours/data_tokens.py",), 2),
            (PLAIN, ("peers/data_tokens.py", "plain"), 2),
            (LOADER, ("peers/data_tokens.py", "loader"), 1),
        ):
            directory = bench.directory(name.replace(" ", "-"))
            command = python(script[0], directory, *script[1:], tokenizer, EPOCHS, *files)
            bench.run(command, directory, {"TOKENIZERS_PARALLELISM": "false"}, timeout_s=TIMEOUT_S)
            epochs = list(zip(*read_rank_results(directory, size=size), strict=True))
            for ranks in epochs:
                sums.append(sum(rank["sum"] for rank in ranks))
                check(sums[-1] == sums[0], f"{name} delivered other tokens: their sum is {sums[-1]}, not {sums[0]}")
            tokens = sum(rank["rows"] for rank in epochs[0])
            rates[name].append(max(tokens / epoch_seconds(ranks) for ranks in epochs[1:]))
    ours, floor = rates.pop("ours"), {PLAIN: rates[PLAIN]}
    return Report(
        [
            Measure("tokens", "/s", ours, floor, Bar(">=", 0.9, ratio=True), floor),
            Measure("tokens", "/s", ours, {LOADER: rates[LOADER]}, None, floor),
        ],
        {"text": f"{tokens:,.0f} tokens in rows of {LENGTH}"},
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--documents", type=int, default=40_000)


if __name__ == "__main__":
    main("tokens", measure, repeats=2, add_arguments=add_arguments)
