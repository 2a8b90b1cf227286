"""Text preprocessors: split into tokens, and count tokens or their hashes.

Hashes use xxhash, which is the same in every process and on every machine. A missing text has no tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from paceline.data.block import Block, Column
from paceline.data.preprocessor import Preprocessor, check_column_names, check_output_columns
from paceline.data.preprocessors.columns import count_vectors, numeric_column, to_python_values
from paceline.data.preprocessors.statistics import Statistic, TokenCountStatistic

Tokenize = Callable[[str], list[str]]


def split_on_spaces(text: str) -> list[str]:
    """Split on spaces: the default tokenizer."""
    return text.split(" ")


def hash_bucket(token: Any, num_features: int) -> int:
    """Return which of `num_features` buckets a token belongs to."""
    return int(xxhash.xxh3_64_intdigest(str(token).encode("utf-8", "surrogatepass")) % num_features)


class _TextPreprocessor(Preprocessor):
    def __init__(
        self, columns: list[str], tokenization_fn: Tokenize | None = None, output_columns: list[str] | None = None
    ) -> None:
        super().__init__()
        self.columns = check_column_names(columns)
        if tokenization_fn is not None and not callable(tokenization_fn):
            raise TypeError(f"tokenization_fn={tokenization_fn!r} must be a function from a text to its tokens")
        self.tokenization_fn = tokenization_fn or split_on_spaces
        self.output_columns = check_output_columns(self.columns, output_columns)

    def _transform_block(self, block: Block) -> Block:
        made = {
            output: self._encode_tokens(self._tokenize_rows(block.columns[column]), column)
            for column, output in zip(self.columns, self.output_columns, strict=True)
        }
        return Block({**block.columns, **made})

    def _tokenize_rows(self, values: Column) -> list[list[str] | None]:
        return [None if text is None else self.tokenization_fn(text) for text in to_python_values(values)]

    def _encode_tokens(self, tokens: list[list[str] | None], column: str) -> Column:
        raise NotImplementedError


class Tokenizer(_TextPreprocessor):
    """Replaces each text by the list of its tokens: words between spaces, or what `tokenization_fn` returns."""

    _is_fittable = False

    def _encode_tokens(self, tokens: list[list[str] | None], column: str) -> Column:
        rows = [None if row is None else list(row) for row in tokens]
        return pa.array(rows) if any(rows) else pa.array(rows, pa.list_(pa.string()))


class HashingVectorizer(_TextPreprocessor):
    """Replaces each text by a vector of `num_features` that counts its tokens by hash."""

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
        self.num_features = _check_num_features(num_features, "num_features")

    def _encode_tokens(self, tokens: list[list[str] | None], column: str) -> Column:
        found = {
            token: hash_bucket(token, self.num_features) for token in {token for row in tokens for token in row or ()}
        }
        return count_vectors(tokens, found, self.num_features)


class CountVectorizer(_TextPreprocessor):
    """Replaces each text by a vector that counts its tokens, with one element per token of the fitted dataset.

    The most frequent tokens come first, at most `max_features` of them; ties are broken by first occurrence in the
    dataset.
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
        self.max_features = None if max_features is None else _check_num_features(max_features, "max_features")

    def _statistics(self) -> Sequence[Statistic]:
        return [TokenCountStatistic(column, self.tokenization_fn) for column in self.columns]

    def _learn(self, found: Sequence[Any]) -> dict[str, Any]:
        return {
            f"token_counts({column})": Counter(dict(counts.most_common(self.max_features)))
            for column, counts in zip(self.columns, found, strict=True)
        }

    def _encode_tokens(self, tokens: list[list[str] | None], column: str) -> Column:
        counts = self.stats_[f"token_counts({column})"]
        return count_vectors(tokens, {token: number for number, token in enumerate(counts)}, len(counts))


class FeatureHasher(Preprocessor):
    """Sums columns of token counts into a vector of `num_features`, by the hash of the column name."""

    _is_fittable = False

    def __init__(self, columns: list[str], num_features: int, output_column: str) -> None:
        super().__init__()
        self.columns = check_column_names(columns)
        self.num_features = _check_num_features(num_features, "num_features")
        self.output_column = output_column

    def get_output_columns(self) -> list[str]:
        return [self.output_column]

    def _transform_block(self, block: Block) -> Block:
        parts = [numeric_column(block, column, "FeatureHasher") for column in self.columns]
        vectors = np.zeros((block.num_rows, self.num_features), np.result_type(*(part.dtype for part in parts)))
        for column, part in zip(self.columns, parts, strict=True):
            vectors[:, hash_bucket(column, self.num_features)] += part
        return block.with_column(self.output_column, vectors)


def _check_num_features(number: Any, argument: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{argument}={number!r} must be an integer of at least 1")
    return number
