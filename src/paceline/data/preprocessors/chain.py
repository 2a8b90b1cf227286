"""Chain: a sequence of preprocessors as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.data.block import Block
from paceline.data.preprocessor import Preprocessor, fit_together
from paceline.data.preprocessors.json_values import Functions

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset


class Chain(Preprocessor):
    """Applies preprocessors in order. Each is fitted on the output of those before it.

    Neighbours that do not need each other's columns are fitted together, in one pass over the rows.
    """

    def __init__(self, *preprocessors: Preprocessor) -> None:
        super().__init__()
        for preprocessor in preprocessors:
            if not isinstance(preprocessor, Preprocessor):
                raise TypeError(f"Chain takes preprocessors, got {preprocessor!r}")
        if not preprocessors:
            raise ValueError("Chain needs at least one preprocessor")
        self.preprocessors = preprocessors

    def fit_status(self) -> Preprocessor.FitStatus:
        status = Preprocessor.FitStatus
        statuses = {each.fit_status() for each in self.preprocessors} - {status.NOT_FITTABLE}
        if not statuses:
            return status.NOT_FITTABLE
        return statuses.pop() if len(statuses) == 1 else status.PARTIALLY_FITTED

    def get_input_columns(self) -> list[str]:
        """Return the columns that the dataset must have, not those that one preprocessor creates for a later one."""
        created: set[str] = set()
        needed: dict[str, None] = {}
        for each in self.preprocessors:
            needed |= dict.fromkeys(name for name in each.get_input_columns() if name not in created)
            created |= set(each.get_output_columns())
        return list(needed)

    def get_output_columns(self) -> list[str]:
        return list(dict.fromkeys(name for each in self.preprocessors for name in each.get_output_columns()))

    def _fit(self, ds: Dataset) -> Any:
        for group in group_fittable(self.preprocessors):
            _fit_together(group, ds)
            for each in group:
                ds = each.transform(ds)

    def _transform_checked(self, block: Block) -> Block:
        for each in self.preprocessors:
            block = each._transform_checked(block)
        return block

    def _keeps_rows(self) -> bool:
        return all(each._keeps_rows() for each in self.preprocessors)

    def to_dict(self) -> dict[str, Any]:
        data = super().to_dict()
        return {**data, "arguments": {"preprocessors": [each.to_dict() for each in self.preprocessors]}}

    def _arguments(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _from_arguments(cls, stored: dict[str, Any], functions: Functions) -> Preprocessor:
        return cls(*(Preprocessor._from_stored(each, functions) for each in stored["preprocessors"]))

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.preprocessors))})"


def group_fittable(preprocessors: tuple[Preprocessor, ...]) -> list[list[Preprocessor]]:
    """Group neighbours that can be fitted on the same rows: none needs a column that another creates or drops."""
    groups: list[list[Preprocessor]] = []
    touched: set[str] = set()
    for each in preprocessors:
        inputs, outputs = set(each.get_input_columns()), set(each.get_output_columns())
        if not groups or not _knows_columns(each) or inputs & touched or not _knows_columns(groups[-1][-1]):
            groups.append([])
            touched = set()
        groups[-1].append(each)
        # Even a column that is only read may be dropped, as Concatenator does.
        touched |= inputs | outputs
    return groups


def _knows_columns(preprocessor: Preprocessor) -> bool:
    """Whether it is fitted with statistics of the columns that it names."""
    return type(preprocessor)._fit is Preprocessor._fit and bool(preprocessor.get_input_columns())


def _fit_together(group: list[Preprocessor], ds: Dataset) -> None:
    fittable = [each for each in group if each.fit_status() is not Preprocessor.FitStatus.NOT_FITTABLE]
    if len(fittable) == 1 and type(fittable[0])._fit is not Preprocessor._fit:
        fittable[0]._fit(ds)
        fittable[0]._fitted = True
        return
    fit_together(fittable, ds)
