"""The text and the tokenizer of `data_tokens.py`, from `examples/tokenize_text.py`, and what a contestant reports."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _circumstances import ROOT

sys.path.insert(0, str(ROOT / "examples"))

from tokenize_text import PackedTokens

LENGTH, BATCH_ROWS, BATCH_DOCUMENTS = 512, 16, 1000


def plain_batches(files: Sequence[str], tokenizer: str) -> Iterator[dict[str, Any]]:
    """Read, tokenize and pack files one after the other, without a library for data."""
    pack = PackedTokens(Path(tokenizer), LENGTH)
    for path in files:
        with open(path) as lines:
            texts = [json.loads(line)["text"] for line in lines]
        for first in range(0, len(texts), BATCH_DOCUMENTS):
            rows = pack({"text": texts[first : first + BATCH_DOCUMENTS]})
            for start in range(0, len(rows["tokens"]), BATCH_ROWS):
                yield {name: values[start : start + BATCH_ROWS] for name, values in rows.items()}


def time_tokens(batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Take all batches; count the tokens of documents, and sum them."""
    began = time.perf_counter()
    tokens, total = 0, 0
    for batch in batches:
        of_documents = batch["document"] >= 0
        tokens += int(of_documents.sum())
        total += int(batch["tokens"][of_documents].sum())
    return {"began": began, "ended": time.perf_counter(), "rows": tokens, "sum": total}
