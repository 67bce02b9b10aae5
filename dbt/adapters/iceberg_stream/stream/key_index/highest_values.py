"""The highest value of a column in data files, whoever has written them."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile

from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import read_keys
from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

# Characters of a bound that may have been cut: `truncate(16)` is Iceberg's default.
CUT_LENGTH = 16
# Files that are read at once.
READERS = 16


@dataclass(frozen=True)
class UpperBound:
    """A value that no row of a data file exceeds.

    Attributes:
        value: the value; null if no row has one.
        is_highest: whether a row has it.
    """

    value: pa.Scalar
    is_highest: bool = True


class HighestValues:
    """Finds the highest value of a column in data files.

    Files are read where their metrics have no bound, or where a bound that was cut, and is too high
    therefore, would be the highest value.

    Args:
        column: the column, as files have it, with its id.
    """

    def __init__(self, column: pa.Field) -> None:
        self.column = column
        number = field_id(column)
        assert number is not None, "columns of tables have ids"
        self._id = number
        self._bounds: dict[str, UpperBound] = {}

    def of(self, target: WriteTarget, files: Iterable[DataFile]) -> pa.Scalar:
        """Return the highest value in some data files; null without one. NaN is none.

        Args:
            target: the table's storage.
            files: the data files; those of the last call are not read again.

        Raises:
            UnsupportedFile: a file cannot be read with this column.
            OSError: the storage refuses a file.
        """
        before, self._bounds, unbounded = self._bounds, {}, []
        self._files = {file.file_path: file for file in files}
        for file in self._files.values():
            bound = before.get(file.file_path) or self._bound(file)
            if bound is None:
                unbounded.append(file.file_path)
            else:
                self._bounds[file.file_path] = bound
        self._read(target, unbounded)
        return self._highest(target)

    def _bound(self, file: DataFile) -> UpperBound | None:
        if (file.null_value_counts or {}).get(self._id) == file.record_count:
            return UpperBound(pa.scalar(None, self.column.type))
        return bound_value(self.column.type, (file.upper_bounds or {}).get(self._id))

    def _highest(self, target: WriteTarget) -> pa.Scalar:
        paths = list(self._bounds)
        values = pa.array([self._bounds[path].value for path in paths], self.column.type)
        descending = pc.sort_indices(values, sort_keys=[("", "descending")]).to_pylist()
        highest = pa.scalar(None, self.column.type)
        while descending and higher(highest, values[descending[0]]) is not highest:
            first, descending = descending[:READERS], descending[READERS:]
            cut = [paths[at] for at in first if not self._bounds[paths[at]].is_highest]
            self._read(target, cut)
            for at in first:
                highest = higher(highest, self._bounds[paths[at]].value)
        return highest

    def _read(self, target: WriteTarget, paths: Sequence[str]) -> None:
        if not paths:
            return
        with ThreadPoolExecutor(min(READERS, len(paths))) as pool:
            values = pool.map(lambda path: self._highest_in(target, path), paths)
            self._bounds |= zip(paths, map(UpperBound, values), strict=True)

    def _highest_in(self, target: WriteTarget, path: str) -> pa.Scalar:
        highest = pa.scalar(None, self.column.type)
        schema = target.schema_in(self._files[path], pa.schema([self.column]))
        for _, rows in read_keys(target, schema, path):
            values = rows[self.column.name]
            if pa.types.is_floating(values.type):
                values = values.filter(pc.invert(pc.fill_null(pc.is_nan(values), True)))
            highest = higher(highest, pc.max(values))
        return highest


def higher(one: pa.Scalar, other: pa.Scalar) -> pa.Scalar:
    """Return the higher one of two values; null counts as lower than any value.

    Args:
        one: a value.
        other: a value of the same type.
    """
    if not one.is_valid:
        return other
    return other if other.is_valid and pc.greater(other, one).as_py() else one


def bound_value(kind: pa.DataType, raw: bytes | None) -> UpperBound | None:
    """Return an upper bound of a file's metrics; None if there is none, or none to rely on.

    Args:
        kind: type of the column. The bound may be from before it was widened.
        raw: the bound, as Iceberg serializes it.
    """
    if raw is None:
        return None
    try:
        return _bound(kind, raw)
    except (UnicodeDecodeError, struct.error, pa.ArrowException):
        return None


def _bound(kind: pa.DataType, raw: bytes) -> UpperBound | None:
    value: Any
    if pa.types.is_floating(kind):
        (value,) = struct.unpack("<f" if len(raw) == 4 else "<d", raw)
        return None if math.isnan(value) else UpperBound(pa.scalar(value, kind))
    if pa.types.is_string(kind):
        text = raw.decode()
        return UpperBound(pa.scalar(text, kind), len(text) < CUT_LENGTH)
    if pa.types.is_binary(kind):
        return UpperBound(pa.scalar(raw, kind), len(raw) < CUT_LENGTH)
    if pa.types.is_decimal(kind):
        digits = Decimal(int.from_bytes(raw, "big", signed=True))
        return UpperBound(pa.scalar(digits.scaleb(-kind.scale, Context(prec=76)), kind))
    is_time = pa.types.is_timestamp(kind) and kind.unit == "us" and len(raw) == 8
    if pa.types.is_integer(kind) or pa.types.is_date32(kind) or is_time:
        value = int.from_bytes(raw, "little", signed=True)
        stored = pa.scalar(value, pa.int32() if kind.bit_width == 32 else pa.int64())
        return UpperBound(stored.cast(kind))
    return None
