"""Sources, sinks and names of files that users write themselves, under Ray Data's names."""

from paceline._core.lazy_imports import make_lazy_getattr

_NAMES: dict[str, tuple[str, ...]] = {
    "paceline.data.block": ("BlockMetadata",),
    "paceline.data.datasource.datasink": ("Datasink", "WriteResult", "WriteTaskContext"),
    "paceline.data.datasource.datasource": ("Datasource", "ReadTask", "read_datasource"),
    "paceline.data.datasource.file_based_datasource": ("FileBasedDatasource",),
    "paceline.data.datasource.file_datasink": ("BlockBasedFileDatasink", "RowBasedFileDatasink"),
    "paceline.data.datasource.filename_provider": ("FilenameProvider",),
    "paceline.data.datasource.partitioning": (
        "PartitionStyle",
        "Partitioning",
        "PathPartitionFilter",
        "PathPartitionParser",
    ),
    "paceline.data.write": ("SaveMode",),
}

__all__ = sorted(name for names in _NAMES.values() for name in names)

__getattr__ = make_lazy_getattr(__name__, _NAMES)
