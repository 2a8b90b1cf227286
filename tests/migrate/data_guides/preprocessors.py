"""Preprocessors: fitted once, applied to datasets and to single batches, chained, and of your own."""

import pandas as pd
import ray
from ray.data.preprocessor import Preprocessor
from ray.data.preprocessors import Chain, Concatenator, LabelEncoder, MinMaxScaler, SimpleImputer

ds = ray.data.from_pandas(pd.DataFrame({"a": [0.0, 1.0, None], "b": [3, 4, 5], "y": ["orange", "blue", "orange"]}))
scaler = MinMaxScaler(columns=["b"])
assert scaler.fit(ds).transform(ds).to_pandas()["b"].tolist() == [0.0, 0.5, 1.0]
assert scaler.transform_batch(pd.DataFrame({"b": [7.0]}))["b"].tolist() == [2.0]
chain = Chain(
    SimpleImputer(columns=["a"], strategy="mean"),
    Concatenator(columns=["a", "b"], output_column_name="x"),
    LabelEncoder(label_column="y"),
)
rows = chain.fit_transform(ds).take_all()
assert [row["y"] for row in rows] == [1, 0, 1] and rows[2]["x"].tolist() == [0.5, 5.0]


class Shift(Preprocessor):
    def __init__(self, column):
        self.column = column

    def _fit(self, dataset):
        self.stats_ = {"mean": dataset.mean(self.column)}
        return self

    def _transform_pandas(self, df):
        df[self.column] = df[self.column] - self.stats_["mean"]
        return df


assert Shift("b").fit_transform(ds).to_pandas()["b"].tolist() == [-1, 0, 1]
