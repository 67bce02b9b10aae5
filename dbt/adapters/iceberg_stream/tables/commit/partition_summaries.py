"""Summaries of partitions, by which readers skip manifests (spec, "Manifest Lists")."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestFile, PartitionFieldStats, PartitionFieldSummary
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DoubleType,
    FloatType,
    PrimitiveType,
    StructType,
    UnknownType,
    UUIDType,
)


def summaries(partition: StructType, values: list[Record]) -> list[PartitionFieldSummary]:
    """Summarize the partition values of a manifest's files.

    Args:
        partition: types of the values.
        values: of each file.
    """
    result = []
    for position, field in enumerate(partition.fields):
        assert isinstance(field.field_type, PrimitiveType), field
        statistics = PartitionFieldStats(field.field_type)
        for value in values:
            statistics.update(value[position])
        result.append(statistics.to_summary())
    return result


class FieldValues:
    """Some values of a partition field, to be found in many summaries.

    Args:
        values: as manifests store them.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = set(values)

    def __contains__(self, value: Any) -> bool:
        return value in self._values

    def any_within(self, lower: Any, upper: Any) -> bool:
        """Return whether some value is within bounds."""
        place = bisect_left(self._sorted, lower)
        return place < len(self._sorted) and bool(self._sorted[place] <= upper)

    @cached_property
    def _sorted(self) -> list[Any]:
        return sorted(self._values - {None})


def may_have_partition(
    manifest: ManifestFile, types: StructType, position: int, values: FieldValues
) -> bool:
    """Return whether a manifest may have files whose partition has one of the values.

    Args:
        manifest: the manifest list's entry, with its partition summaries.
        types: types of the partition values of the manifest's spec.
        position: the partition field's position in the spec, from 0.
        values: values of the field.
    """
    summaries = manifest.partitions
    kind = types.fields[position].field_type
    if not summaries or position >= len(summaries) or not has_one_order(types, position):
        return True
    summary = summaries[position]
    has_null = bool(summary.contains_null) and None in values
    if summary.lower_bound is None or summary.upper_bound is None:
        return bool(summary.contains_nan) or has_null
    assert isinstance(kind, PrimitiveType)
    try:
        bounds = [from_bytes(kind, bound) for bound in (summary.lower_bound, summary.upper_bound)]
    except struct.error:
        return True  # of the type that the column had before
    return has_null or values.any_within(*bounds)


def has_one_order(types: StructType, position: int) -> bool:
    """Return whether all writers agree on the order, and the equality, of a partition field.

    Args:
        types: types of the partition values of a spec.
        position: the partition field's position in the spec, from 0.
    """
    kind = types.fields[position].field_type
    disputed = UnknownType | FloatType | DoubleType | UUIDType
    return isinstance(kind, PrimitiveType) and not isinstance(kind, disputed)
