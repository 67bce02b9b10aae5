"""Finds data files that may have rows with the keys of a source, by their bounds."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cache, cached_property, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    Or,
    Reference,
)
from pyiceberg.expressions.literals import DateLiteral, Literal, TimestampLiteral, literal
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.types import NestedField, PrimitiveType, StringType, StructType

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.partition_summaries import (
    FieldValues,
    has_one_order,
    may_have_partition,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema, partition_spec
from dbt.adapters.iceberg_stream.tables.files.partitions import partition_values
from dbt.adapters.iceberg_stream.tables.merge.conditions import (
    Combination,
    Comparison,
    Condition,
)

# What Java writes in bounds for bytes that are not UTF-8: such bounds hold for no order.
REPLACED = "\ufffd"
COMBINE = {"and": And, "or": Or, "not": Not}
COMPARE = {
    "=": EqualTo,
    "<>": NotEqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
}


def may_hold(rows: pa.Table, keys: Sequence[str], schema: Schema) -> Callable[[DataFile], bool]:
    """Return a test of data files: whether the keys of some row are within the file's bounds.

    Args:
        rows: the source's rows.
        keys: names of the key columns.
        schema: the table's schema.
    """
    columns = [_SortedKeys(schema.find_field(key), rows[key].combine_chunks()) for key in keys]

    def test(file: DataFile) -> bool:
        found = [
            (_number_of_rows(parts), place, parts)
            for place, column in enumerate(columns)
            if (parts := column.within(file)) is not None
        ]
        if not found:
            return True
        # Columns with fewer rows first: most files have none.
        (least, place, parts), *others = sorted(found)
        if not others or not least:
            return least > 0
        possible = columns[place].rows(parts)
        for _, place, parts in others:
            possible = possible.filter(columns[place].are_in(parts, possible))
        return len(possible) > 0

    return test


# Parts of sorted rows: the first place, and the place after the last one.
_Parts = list[tuple[int, int]]


def _number_of_rows(parts: _Parts) -> int:
    return sum(end - begin for begin, end in parts)


class _SortedKeys:
    """The rows of a source, sorted by one key column: values, then NaN, then null."""

    def __init__(self, field: NestedField, values: pa.Array) -> None:
        self._field, self._is_text = field, _is_text(values)
        self._order = pc.sort_indices(values)
        nulls = len(values) - values.null_count
        nans = nulls - _number_of_nans(values)
        self._values = _as_in_bounds(values.take(self._order[:nans]))
        self._nans, self._nulls = (nans, nulls), (nulls, len(values))

    @cached_property
    def _places(self) -> pa.Array:
        """The place of each row in the order."""
        return pc.sort_indices(self._order)

    def within(self, file: DataFile) -> _Parts | None:
        """Return the rows within the file's bounds; None if it has none that hold."""
        lower = _bound(file.lower_bounds, self._field)
        upper = _bound(file.upper_bounds, self._field)
        if lower is None or upper is None or not self._is_text:
            return None
        if isinstance(lower, str) and REPLACED in lower + upper:
            return None
        if lower != lower or upper != upper:
            return None  # NaN
        # Truncated upper bounds of strings are incremented, so they stay upper bounds.
        begin = bisect_left(self._values, lower, key=_value)
        end = bisect_right(self._values, upper, lo=begin, key=_value)
        parts = [(begin, end)]
        if (file.nan_value_counts or {}).get(self._field.field_id) != 0:
            parts.append(self._nans)  # bounds do not include it
        if (file.null_value_counts or {}).get(self._field.field_id) != 0:
            parts.append(self._nulls)
        return parts

    def rows(self, parts: _Parts) -> pa.Array:
        """Return the positions of the rows of parts."""
        return pa.concat_arrays([self._order[begin:end] for begin, end in parts])

    def are_in(self, parts: _Parts, rows: pa.Array) -> pa.BooleanArray:
        """Return which of some rows are in parts."""
        places = self._places.take(rows)
        inside = [
            pc.and_(pc.greater_equal(places, begin), pc.less(places, end)) for begin, end in parts
        ]
        return reduce(pc.or_, inside)


def _value(scalar: pa.Scalar) -> Any:
    return scalar.as_py()


def _number_of_nans(values: pa.Array) -> int:
    return pc.sum(pc.is_nan(values)).as_py() or 0 if pa.types.is_floating(values.type) else 0


def _as_in_bounds(values: pa.Array) -> pa.Array:
    """Return values as PyIceberg has them in bounds: dates and times as numbers."""
    if pa.types.is_date(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def may_satisfy(condition: Condition, schema: Schema) -> Callable[[DataFile], bool]:
    """Return a test of data files: whether a condition may hold for some of the file's rows.

    Args:
        condition: the condition.
        schema: the table's schema.
    """
    numbers = [schema.find_field(name).field_id for name in condition.columns]
    by_metrics = _InclusiveMetricsEvaluator(schema, _expression(condition))

    def test(file: DataFile) -> bool:
        sides = (file.lower_bounds or {}, file.upper_bounds or {})
        bounds = [side.get(number, b"") for side in sides for number in numbers]
        if any(REPLACED.encode() in bound for bound in bounds):
            return True
        try:
            return by_metrics.eval(file)
        except (struct.error, UnicodeDecodeError):
            return True  # as for `_bound`

    return test


def manifests_that_may_satisfy(
    condition: Condition, metadata: Metadata
) -> Callable[[ManifestFile], bool]:
    """Return a test of manifests: whether a condition may hold in a partition of their files.

    Args:
        condition: the condition.
        metadata: table metadata.
    """
    schema, expression = current_schema(metadata), _expression(condition)

    @cache
    def of_spec(spec_id: int) -> Callable[[ManifestFile], bool]:
        spec = partition_spec(metadata, spec_id)
        try:
            of_partitions = inclusive_projection(schema, spec)(expression)
        except (OverflowError, ValueError):
            return lambda manifest: True  # Python has no dates of these years
        return manifest_evaluator(spec, schema, of_partitions)

    return lambda manifest: of_spec(manifest.partition_spec_id)(manifest)


def _expression(condition: Condition) -> BooleanExpression:
    """Return a condition as PyIceberg has it."""
    if isinstance(condition, Combination):
        return COMBINE[condition.operator](*map(_expression, condition.parts))
    assert isinstance(condition, Comparison)
    column = Reference(condition.column)
    if condition.operator == "is null":
        return IsNull(term=column)
    compare = COMPARE["=" if condition.operator == "in" else condition.operator]
    return reduce(Or, (compare(column, _literal(value)) for value in condition.values))


def _literal(value: pa.Scalar) -> Literal[Any]:
    """Return a constant as PyIceberg has it; dates and times as numbers, for years of any size."""
    if pa.types.is_date(value.type):
        return DateLiteral(value.cast(pa.int32()).as_py())
    if pa.types.is_timestamp(value.type):
        return TimestampLiteral(value.cast(pa.int64()).as_py())
    return literal(value.as_py())


def fields_of_keys(
    metadata: Metadata, spec_id: int, keys: Sequence[str]
) -> tuple[StructType, list[tuple[int, PartitionField]]]:
    """Return the types of a spec's partition values, and the fields that keys decide.

    Args:
        metadata: table metadata.
        spec_id: of the partition spec.
        keys: names of the key columns.

    Returns:
        The types, and the fields with their positions in the spec.
    """
    spec, schema = partition_spec(metadata, spec_id), current_schema(metadata)
    types = spec.partition_type(schema)
    return types, [
        (position, field)
        for position, field in enumerate(spec.fields)
        if schema.find_column_name(field.source_id) in keys
        and not isinstance(field.transform, VoidTransform | UnknownTransform)
        and has_one_order(types, position)
    ]


class PartitionsOfRows:
    """The partitions that rows with the keys of a source may be in, by partition spec.

    Args:
        rows: the source's rows.
        keys: names of the key columns.
        metadata: table metadata.
    """

    def __init__(self, rows: pa.Table, keys: Sequence[str], metadata: Metadata) -> None:
        self._rows, self._keys, self._metadata = rows, keys, metadata
        self._schema = current_schema(metadata)
        self._of_spec = cache(self._values)

    def _values(self, spec_id: int) -> tuple[StructType, list[tuple[int, FieldValues]]]:
        """Return the types of partition values, and the values of the fields that keys decide."""
        types, fields = fields_of_keys(self._metadata, spec_id, self._keys)
        return types, [
            (
                position,
                FieldValues(partition_values(self._rows, field, self._schema).unique().to_pylist()),
            )
            for position, field in fields
        ]

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Return whether a manifest may have files of the partition of some row."""
        types, values = self._of_spec(manifest.partition_spec_id)
        return all(
            may_have_partition(manifest, types, position, field_values)
            for position, field_values in values
        )

    def may_be_of(self, file: DataFile) -> bool:
        """Return whether a file is of the partition of some row."""
        partition = file.partition
        for position, values in self._of_spec(file.spec_id)[1]:
            if partition[position] not in values:
                return False
        return True


def _is_text(values: pa.Array) -> bool:
    """Return whether values are no strings, or UTF-8. Java replaces other bytes in its bounds."""
    if not pa.types.is_string(values.type):
        return True
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _bound(bounds: dict[int, bytes] | None, field: NestedField) -> Any:
    raw = (bounds or {}).get(field.field_id)
    if raw is None:
        return None
    if isinstance(field.field_type, StringType):
        return raw.decode("utf-8", "replace")
    assert isinstance(field.field_type, PrimitiveType)
    try:
        return from_bytes(field.field_type, raw)
    except struct.error:
        return None  # of the type that the column had before, or has since
