"""The expected numbers were computed with the preprocessors of Ray 2.58."""

import numpy as np
import pandas as pd
import pytest

from paceline import data
from paceline.data import preprocessors
from paceline.data.preprocessor import Preprocessor
from paceline.data.preprocessors import (
    CountVectorizer,
    FeatureHasher,
    HashingVectorizer,
    MinMaxScaler,
    OneHotEncoder,
    PowerTransformer,
    SimpleImputer,
    StandardScaler,
    Tokenizer,
    TorchVisionPreprocessor,
    UniformKBinsDiscretizer,
)

TEXTS = ["a b a", "c  b", "", "B b"]
SPREADS = {1e-20: 0.0, 1e-10: 1e-10, 1e-7: 1.2247448713915892}
"""What becomes of the largest of the values -spread, 0 and spread."""


def fit_transform(preprocessor, **columns):
    ds = data.from_pandas(pd.DataFrame(columns))
    return preprocessor.fit_transform(ds).take_batch(100)


@pytest.mark.parametrize(
    ("preprocessor", "columns", "expected"),
    [
        (HashingVectorizer(["t"], 4), {"t": TEXTS}, [[0, 1, 0, 2], [0, 2, 1, 0], [0, 1, 0, 0], [1, 1, 0, 0]]),
        (CountVectorizer(["t"]), {"t": TEXTS}, [[1, 2, 0, 0, 0], [1, 0, 1, 1, 0], [0, 0, 1, 0, 0], [1, 0, 0, 0, 1]]),
        (CountVectorizer(["t"], max_features=2), {"t": TEXTS}, [[1, 2], [1, 0], [0, 0], [1, 0]]),
        (FeatureHasher(["a", "b", "c"], 4, "t"), {"a": [1, 2], "b": [3, 4], "c": [5, 6]}, [[0, 3, 5, 1], [0, 4, 6, 2]]),
        (SimpleImputer(["t"], "most_frequent"), {"t": [10.0, 9, 9, 10, None]}, [10, 9, 9, 10, 10]),
        (OneHotEncoder(["t"], max_categories={"t": 2}), {"t": list("bacbc")}, [[1, 0], [0, 0], [0, 1], [1, 0], [0, 1]]),
        (PowerTransformer(["t"], 0.5), {"t": [-1.0, 0, 2]}, [-1.2189514164974602, 0, 1.4641016151377544]),
        (UniformKBinsDiscretizer(["t"], 3), {"t": [0.0, 1, 2, 3]}, [0, 0, 1, 2]),
        *((StandardScaler(["t"]), {"t": [-eps, 0, eps]}, [-most, 0, most]) for eps, most in SPREADS.items()),
        (MinMaxScaler(["t"]), {"t": [-1e-9, 0, 1e-9]}, [0, 1e-9, 2e-9]),
        (MinMaxScaler(["t"]), {"t": [-1e-7, 0, 1e-7]}, [0, 0.5, 1]),
    ],
    ids=repr,
)
def test_gives_the_numbers_of_ray(preprocessor, columns, expected):
    np.testing.assert_allclose(fit_transform(preprocessor, **columns)["t"].tolist(), expected, rtol=1e-12, atol=1e-19)


@pytest.mark.parametrize(
    "name", sorted(set(preprocessors.__all__) - {"PreprocessorNotFittedException", "Preprocessor"})
)
def test_classes_show_what_their_constructors_take(name):
    cls = getattr(preprocessors, name)
    assert all(hasattr(cls, cls._attributes.get(each, each)) for each in cls._argument_names())


def test_arguments_are_attributes_and_the_plan_names_the_statistics():
    encoder = OneHotEncoder(["x"], output_columns=["y"])
    assert (encoder.columns, encoder.output_columns, encoder.max_categories) == (["x"], ["y"], None)
    assert [each.column for each in encoder.stat_computation_plan] == ["x"]
    assert not Tokenizer(["x"]).stat_computation_plan
    assert Tokenizer.preferred_batch_format() == "numpy"
    assert [encoder.safe_get(value, {"a": 0, ("a",): 3}) for value in ("a", ["a"], "z")] == [0, 3, -1]
    with pytest.raises(AttributeError, match="Unset has no attribute 'size'"):
        Unset(1).size  # noqa: B018
    with pytest.warns(UserWarning, match=r"Preprocessor.transform: memory has no effect"):
        Tokenizer(["t"]).fit_transform(data.from_items([{"t": "a b"}]), transform_memory=1)


class Unset(Preprocessor):
    def __init__(self, size):
        super().__init__()


class Doubling(Preprocessor):
    _is_fittable = False

    def _transform_numpy(self, batch):
        return {"x": batch["x"] * 2}


def test_a_class_is_stored_under_its_id_and_refuses_a_later_version(monkeypatch):
    monkeypatch.setattr(Doubling, "_class_id", None)
    monkeypatch.setattr(Doubling, "_version", 1)
    Doubling.set_preprocessor_class_id("doubling")
    Doubling.set_version(2)
    stored = Doubling().to_dict()
    assert (stored["type"], stored["version"], Doubling.get_preprocessor_class_id()) == ("doubling", 2, "doubling")
    assert type(Preprocessor.from_dict(stored, allowed_functions=[Doubling])) is Doubling
    with pytest.raises(ValueError, match="'doubling' is not a preprocessor"):
        Preprocessor.from_dict(stored)
    Doubling.set_version(1)
    with pytest.raises(ValueError, match="cannot read version 2 of doubling: this Doubling has version 1"):
        Preprocessor.from_dict(stored, allowed_functions=[Doubling])
    with pytest.raises(TypeError, match="the name of Tokenizer cannot be changed"):
        Tokenizer.set_preprocessor_class_id("other")


def crop(image):
    return image[:1]


def to_tensor(image):
    import torch

    if isinstance(image, torch.Tensor):
        raise TypeError("takes an array")
    return torch.tensor(image)[:1]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("transform", [crop, to_tensor])
def test_torchvision_preprocessor_transforms_images_or_batches(transform, batched):
    pytest.importorskip("torch")
    images = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    preprocessor = TorchVisionPreprocessor(["image"], transform, batched=batched)
    preprocessor = Preprocessor.deserialize(preprocessor.serialize(), allowed_functions=[transform])
    assert f"transform={transform.__name__}" in repr(preprocessor)
    result = preprocessor.transform_batch({"image": images})["image"]
    np.testing.assert_array_equal(result, images[:1] if batched else images[:, :1])


def test_torchvision_preprocessor_refuses_other_results():
    pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"transform must return a torch.Tensor or an array, got int"):
        TorchVisionPreprocessor(["x"], lambda image: 3).transform_batch({"x": np.zeros((1, 2))})
