"""Texts: split into tokens, and counted, by token or by hash.

Hashes are xxhash's, the same in every process and on every machine. A missing text has no tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from paceline.data.block import Block, Column
from paceline.data.preprocessor import Preprocessor, checked_columns, checked_output_columns
from paceline.data.preprocessors.columns import count_vectors, numbers, plain_values
from paceline.data.preprocessors.statistics import Statistic, Tokens

Tokenize = Callable[[str], list[str]]


def split_on_spaces(text: str) -> list[str]:
    """What tokenizes where nothing else is given."""
    return text.split(" ")


def bucket(token: Any, num_features: int) -> int:
    """Which of `num_features` a token belongs to."""
    return int(xxhash.xxh3_64_intdigest(str(token).encode("utf-8", "surrogatepass")) % num_features)


class _TextPreprocessor(Preprocessor):
    def __init__(
        self, columns: list[str], tokenization_fn: Tokenize | None = None, output_columns: list[str] | None = None
    ) -> None:
        super().__init__()
        self.columns = checked_columns(columns)
        if tokenization_fn is not None and not callable(tokenization_fn):
            raise TypeError(f"tokenization_fn={tokenization_fn!r} must be a function from a text to its tokens")
        self.tokenization_fn = tokenization_fn or split_on_spaces
        self.output_columns = checked_output_columns(self.columns, output_columns)

    def _transform_block(self, block: Block) -> Block:
        made = {
            output: self._made_of(self._tokens(block.columns[column]), column)
            for column, output in zip(self.columns, self.output_columns, strict=True)
        }
        return Block({**block.columns, **made})

    def _tokens(self, values: Column) -> list[list[str] | None]:
        return [None if text is None else self.tokenization_fn(text) for text in plain_values(values)]

    def _made_of(self, tokens: list[list[str] | None], column: str) -> Column:
        raise NotImplementedError


class Tokenizer(_TextPreprocessor):
    """Each text becomes the list of its tokens: its words between spaces, or what `tokenization_fn` returns."""

    _is_fittable = False

    def _made_of(self, tokens: list[list[str] | None], column: str) -> Column:
        rows = [None if row is None else list(row) for row in tokens]
        return pa.array(rows) if any(rows) else pa.array(rows, pa.list_(pa.string()))


class HashingVectorizer(_TextPreprocessor):
    """Each text becomes a vector of `num_features` that counts its tokens by their hashes."""

    _is_fittable = False

    def __init__(
        self,
        columns: list[str],
        num_features: int,
        tokenization_fn: Tokenize | None = None,
        *,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, tokenization_fn, output_columns)
        self.num_features = _checked_number(num_features, "num_features")

    def _made_of(self, tokens: list[list[str] | None], column: str) -> Column:
        found = {token: bucket(token, self.num_features) for token in {token for row in tokens for token in row or ()}}
        return count_vectors(tokens, found, self.num_features)


class CountVectorizer(_TextPreprocessor):
    """Each text becomes a vector that counts its tokens: one number for each token of the fitted dataset.

    The most frequent tokens come first, at most `max_features` of them; of equally frequent ones, that which comes
    first in the dataset.
    """

    def __init__(
        self,
        columns: list[str],
        tokenization_fn: Tokenize | None = None,
        max_features: int | None = None,
        *,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, tokenization_fn, output_columns)
        self.max_features = None if max_features is None else _checked_number(max_features, "max_features")

    def _statistics(self) -> Sequence[Statistic]:
        return [Tokens(column, self.tokenization_fn) for column in self.columns]

    def _learn(self, found: Sequence[Any]) -> dict[str, Any]:
        return {
            f"token_counts({column})": Counter(dict(counts.most_common(self.max_features)))
            for column, counts in zip(self.columns, found, strict=True)
        }

    def _made_of(self, tokens: list[list[str] | None], column: str) -> Column:
        counts = self.stats_[f"token_counts({column})"]
        return count_vectors(tokens, {token: number for number, token in enumerate(counts)}, len(counts))


class FeatureHasher(Preprocessor):
    """Adds up columns that count tokens, by the hashes of their names, to a vector of `num_features`."""

    _is_fittable = False

    def __init__(self, columns: list[str], num_features: int, output_column: str) -> None:
        super().__init__()
        self.columns = checked_columns(columns)
        self.num_features = _checked_number(num_features, "num_features")
        self.output_column = output_column

    def get_output_columns(self) -> list[str]:
        return [self.output_column]

    def _transform_block(self, block: Block) -> Block:
        parts = [numbers(block, column, "FeatureHasher") for column in self.columns]
        vectors = np.zeros((block.num_rows, self.num_features), np.result_type(*(part.dtype for part in parts)))
        for column, part in zip(self.columns, parts, strict=True):
            vectors[:, bucket(column, self.num_features)] += part
        return block.with_column(self.output_column, vectors)


def _checked_number(number: Any, argument: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{argument}={number!r} must be an integer of at least 1")
    return number
