"""Preprocessors: fitted on a dataset, applied to datasets and batches, saved with a checkpoint as plain JSON.

Names are imported lazily, on first access.
"""

from paceline._core.lazy_imports import make_lazy_getattr

_NAMES: dict[str, tuple[str, ...]] = {
    "paceline.data.preprocessor": ("Preprocessor", "PreprocessorNotFittedException"),
    "paceline.data.preprocessors.chain": ("Chain",),
    "paceline.data.preprocessors.encoders": (
        "Categorizer",
        "LabelEncoder",
        "MultiHotEncoder",
        "OneHotEncoder",
        "OrdinalEncoder",
    ),
    "paceline.data.preprocessors.imputer": ("SimpleImputer",),
    "paceline.data.preprocessors.numeric": (
        "Concatenator",
        "CustomKBinsDiscretizer",
        "MaxAbsScaler",
        "MinMaxScaler",
        "Normalizer",
        "PowerTransformer",
        "RobustScaler",
        "StandardScaler",
        "UniformKBinsDiscretizer",
    ),
    "paceline.data.preprocessors.text": ("CountVectorizer", "FeatureHasher", "HashingVectorizer", "Tokenizer"),
    "paceline.data.preprocessors.torchvision": ("TorchVisionPreprocessor",),
}

__all__ = sorted(name for names in _NAMES.values() for name in names)

__getattr__ = make_lazy_getattr(__name__, _NAMES)
