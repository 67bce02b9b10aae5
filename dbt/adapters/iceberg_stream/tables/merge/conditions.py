"""Conditions on a table's rows that PyArrow decides as Spark does.

Worker code: the standard library and PyArrow only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

COMPARE = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
COMBINE = {"and": pc.and_kleene, "or": pc.or_kleene}


class Condition(ABC):
    """A condition on rows, which is true, false or unknown."""

    @property
    @abstractmethod
    def columns(self) -> list[str]:
        """The columns that it reads."""

    @abstractmethod
    def holds(self, rows: pa.Table) -> pa.BooleanArray:
        """Return for which rows it holds; null where that is unknown."""


@dataclass(frozen=True)
class Comparison(Condition):
    """A column compared with constants. A null compares as unknown, as in SQL.

    Attributes:
        column: its name.
        operator: one of COMPARE, `in` or `is null`.
        values: the constants, of the column's type and not null: several for `in`, none for
            `is null`.
    """

    column: str
    operator: str
    values: tuple[pa.Scalar, ...] = ()

    @property
    def columns(self) -> list[str]:
        return [self.column]

    def holds(self, rows: pa.Table) -> pa.BooleanArray:
        values = rows[self.column].combine_chunks()
        if self.operator == "is null":
            return values.is_null()
        if self.operator == "in":
            each = [pc.equal(values, value) for value in self.values]
            return reduce(pc.or_kleene, each)
        return COMPARE[self.operator](values, self.values[0])


@dataclass(frozen=True)
class Combination(Condition):
    """Conditions combined by `and` or `or`, or one that is negated by `not`.

    Attributes:
        operator: `and`, `or` or `not`.
        parts: the conditions.
    """

    operator: str
    parts: Sequence[Condition]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for part in self.parts for name in part.columns))

    def holds(self, rows: pa.Table) -> pa.BooleanArray:
        each = [part.holds(rows) for part in self.parts]
        return (
            pc.invert(each[0]) if self.operator == "not" else reduce(COMBINE[self.operator], each)
        )
