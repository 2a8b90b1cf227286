"""Text preprocessors: split into tokens, and count tokens or their hashes.

Hashes use SHA-256, as those of Ray do, so that a model can move between the two. A missing text has no tokens.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from paceline._core.arguments import check_int
from paceline.data.block import Block, Column
from paceline.data.preprocessor import ColumnPreprocessor, Preprocessor, check_column_names
from paceline.data.preprocessors.columns import count_vectors, numeric_column, to_python_values
from paceline.data.preprocessors.fitting import Statistic, TokenCountStatistic

Tokenize = Callable[[str], list[str]]


def split_on_spaces(text: str) -> list[str]:
    """Split on spaces: the default tokenizer."""
    return text.split(" ")


def hash_bucket(token: Any, num_features: int) -> int:
    digest = hashlib.sha256(str(token).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest, "big") % num_features


class _TextPreprocessor(ColumnPreprocessor):
    def __init__(
        self, columns: list[str], tokenization_fn: Tokenize | None = None, output_columns: list[str] | None = None
    ) -> None:
        super().__init__(columns, output_columns)
        if tokenization_fn is not None and not callable(tokenization_fn):
            raise TypeError(f"tokenization_fn must be a function from a text to its tokens, got {tokenization_fn!r}")
        self.tokenization_fn = tokenization_fn or split_on_spaces

    def _transform_column(self, block: Block, column: str) -> Column:
        texts = to_python_values(block.columns[column])
        return self._encode_tokens([None if text is None else self.tokenization_fn(text) for text in texts], column)

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
        self.num_features = check_int("num_features", num_features, at_least=1)

    def _encode_tokens(self, tokens: list[list[str] | None], column: str) -> Column:
        distinct = {token for row in tokens for token in row or ()}
        buckets = {token: hash_bucket(token, self.num_features) for token in distinct}
        return count_vectors(tokens, buckets, self.num_features)


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
        self.max_features = check_int("max_features", max_features, at_least=1, optional=True)

    def _statistic(self, column: str) -> Statistic:
        return TokenCountStatistic(column, self.tokenization_fn)

    def _learn_column(self, column: str, result: Counter[str]) -> dict[str, Any]:
        return {f"token_counts({column})": Counter(dict(result.most_common(self.max_features)))}

    def _encode_tokens(self, tokens: list[list[str] | None], column: str) -> Column:
        counts = self.stats_[f"token_counts({column})"]
        return count_vectors(tokens, {token: number for number, token in enumerate(counts)}, len(counts))


class FeatureHasher(Preprocessor):
    """Sums columns of token counts into a vector of `num_features`, by the hash of the column name."""

    _is_fittable = False

    def __init__(self, columns: list[str], num_features: int, output_column: str) -> None:
        super().__init__()
        self.columns = check_column_names(columns)
        self.num_features = check_int("num_features", num_features, at_least=1)
        self.output_column = output_column

    def get_output_columns(self) -> list[str]:
        return [self.output_column]

    def _transform_block(self, block: Block) -> Block:
        parts = [numeric_column(block, column, "FeatureHasher") for column in self.columns]
        vectors = np.zeros((block.num_rows, self.num_features), np.result_type(*(part.dtype for part in parts)))
        for column, part in zip(self.columns, parts, strict=True):
            vectors[:, hash_bucket(column, self.num_features)] += part
        return block.with_column(self.output_column, vectors)
