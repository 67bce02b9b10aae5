"""Finds data files that may have rows with the keys of a source, by their bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, reduce
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
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import NestedField, PrimitiveType, StringType, StructType

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.manifests import may_have_partition
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
    columns = [(schema.find_field(key), rows[key].combine_chunks()) for key in keys]

    def test(file: DataFile) -> bool:
        possible: Any = None
        for field, values in columns:
            in_bounds = _within(file, field, values)
            if in_bounds is None:
                continue
            possible = in_bounds if possible is None else pc.and_(possible, in_bounds)
        return possible is None or bool(pc.any(possible).as_py())

    return test


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
        return any(REPLACED.encode() in bound for bound in bounds) or by_metrics.eval(file)

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


def manifests_of(
    rows: pa.Table, keys: Sequence[str], metadata: Metadata
) -> Callable[[ManifestFile], bool]:
    """Return a test of manifests: whether one may have files of the partition of some row.

    Args:
        rows: the source's rows.
        keys: names of the key columns.
        metadata: table metadata.
    """
    schema = current_schema(metadata)
    by_spec: dict[int, tuple[StructType, dict[int, set[Any]]]] = {}

    def values_of(spec_id: int) -> tuple[StructType, dict[int, set[Any]]]:
        spec = partition_spec(metadata, spec_id)
        return spec.partition_type(schema), {
            position: set(partition_values(rows, field, schema).unique().to_pylist())
            for position, field in enumerate(spec.fields)
            if schema.find_column_name(field.source_id) in keys
            and not isinstance(field.transform, VoidTransform)
        }

    def test(manifest: ManifestFile) -> bool:
        spec_id = manifest.partition_spec_id
        if spec_id not in by_spec:
            by_spec[spec_id] = values_of(spec_id)
        types, values = by_spec[spec_id]
        return all(
            may_have_partition(manifest, types, position, field_values)
            for position, field_values in values.items()
        )

    return test


def _within(file: DataFile, field: NestedField, values: pa.Array) -> pa.BooleanArray | None:
    """Return which values are within the file's bounds; None if it has none that hold."""
    lower = _bound(file.lower_bounds, field)
    upper = _bound(file.upper_bounds, field)
    nulls = (file.null_value_counts or {}).get(field.field_id)
    nans = (file.nan_value_counts or {}).get(field.field_id)
    if lower is None or upper is None or not _is_text(values):
        return None
    if isinstance(lower, str) and REPLACED in lower + upper:
        return None
    # Truncated upper bounds of strings are incremented, so they stay upper bounds.
    inside = pc.and_(
        pc.greater_equal(values, pa.scalar(lower, values.type)),
        pc.less_equal(values, pa.scalar(upper, values.type)),
    )
    if pa.types.is_floating(values.type):
        # Bounds do not include NaN.
        inside = pc.if_else(pc.is_nan(values), nans != 0, inside)
    return pc.fill_null(inside, nulls != 0)


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
    return from_bytes(field.field_type, raw)
