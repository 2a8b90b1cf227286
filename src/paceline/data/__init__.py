"""Streaming datasets for training: read, transform, split and iterate.

Names are imported lazily, on first access.
"""

from paceline._core.lazy_imports import make_lazy_getattr

_NAMES: dict[str, tuple[str, ...]] = {
    "paceline._core.errors": ("DataError",),
    "paceline.data.aggregate": (
        "AbsMax",
        "AggregateFn",
        "AggregateFnV2",
        "Count",
        "Max",
        "Mean",
        "Min",
        "Quantile",
        "Std",
        "Sum",
        "Unique",
    ),
    "paceline.data.context": ("DataContext", "ExecutionOptions", "ExecutionResources"),
    "paceline.data.dataset": ("Dataset", "MaterializedDataset"),
    "paceline.data.datasource.datasink": ("Datasink",),
    "paceline.data.datasource.file_datasink": ("BlockBasedFileDatasink", "RowBasedFileDatasink"),
    "paceline.data.datasource.datasource": ("Datasource", "ReadTask", "read_datasource"),
    "paceline.data.expressions": ("col", "lit"),
    "paceline.data.interop": (
        "as_dataset",
        "from_blocks",
        "from_daft",
        "from_dask",
        "from_huggingface",
        "from_modin",
        "from_polars",
        "from_spark",
        "from_tf",
        "from_torch",
    ),
    "paceline.data.grouped_data": ("GroupedData",),
    "paceline.data.iterator": ("DataIterator", "DatasetIterator"),
    "paceline.data.transforms.user_calls": ("ActorPoolStrategy", "TaskPoolStrategy"),
    "paceline.data.planning.mix_pattern": ("MixStoppingCondition",),
    "paceline.data.preprocessor": ("Preprocessor",),
    "paceline.data.read": (
        "FileShuffleConfig",
        "from_arrow",
        "from_items",
        "from_numpy",
        "from_pandas",
        "range",
        "range_tensor",
        "read_audio",
        "read_avro",
        "read_binary_files",
        "read_csv",
        "read_images",
        "read_json",
        "read_numpy",
        "read_orc",
        "read_parquet",
        "read_sql",
        "read_text",
        "read_tfrecords",
        "read_videos",
        "read_webdataset",
    ),
    "paceline.data.read_tables": ("read_delta", "read_iceberg", "read_lance", "read_zarr"),
    "paceline.data.block": ("Block", "BlockMetadata", "Schema"),
    "paceline.data.stats": ("DatasetSummary",),
    "paceline.data.write": ("SaveMode",),
}

_SUBMODULES = ("datasource", "preprocessors")

__all__ = sorted([*_SUBMODULES, *(name for names in _NAMES.values() for name in names)])

__getattr__ = make_lazy_getattr(__name__, _NAMES, submodules=_SUBMODULES)
