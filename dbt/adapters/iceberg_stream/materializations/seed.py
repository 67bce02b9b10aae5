"""Build the table of a seed from the rows of its CSV file, with the types that dbt infers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from dbt.adapters.base import BaseRelation

from dbt.adapters.iceberg_stream.catalog.table_config import TableConfig
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.materializations.local_table import (
    TIME_ZONE,
    TIMESTAMP_TYPE,
    build_from_rows,
)
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse

if TYPE_CHECKING:
    import agate

INT64 = range(-(2**63), 2**63)
# The widest decimal of Iceberg (spec, "Primitive Types").
MAX_DECIMAL_DIGITS = 38
# Types of `column_types` for which Arrow parses a text as Spark does, or refuses it.
TEXT_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
DECIMAL = re.compile(r"decimal\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)")


def build_seed(
    context: MaterializationContext,
    relation: BaseRelation,
    seed: agate.Table,
    layout: TableConfig,
    config: Mapping[str, Any],
    view: str,
) -> IcebergStreamResponse | None:
    """Create or replace the table of a seed in one commit.

    Args:
        context: what the materialization needs of the adapter.
        relation: the seed's table.
        seed: the rows.
        layout: the table's layout.
        config: the seed's config.
        view: name of a temporary view for the rows, if Spark must write them.

    Returns:
        The commit; None if Spark must write the rows.

    Raises:
        DbtDatabaseError: the catalog or the storage refuses; nothing was written.
    """
    rows = arrow_table(seed)
    typed = _cast_columns(context, rows, config.get("column_types") or {})
    response = (
        None if typed is None else build_from_rows(context, relation, typed, layout, config, "seed")
    )
    if response is None:
        with context.database_errors(f"seed {relation}"):
            context.session().register(view, rows)
    return response


def arrow_table(rows: agate.Table) -> pa.Table:
    """Convert a seed to Arrow; empty cells are null in columns of all types.

    Args:
        rows: the seed.
    """
    columns = [_column(rows, index) for index in range(len(rows.column_names))]
    return pa.Table.from_arrays(columns, names=list(rows.column_names))


def _cast_columns(
    context: MaterializationContext, rows: pa.Table, types: Mapping[str, str]
) -> pa.Table | None:
    """Cast the columns to `column_types`; return None if Spark must parse the texts."""
    if not _has_utc_timestamps(context):
        return None
    configured = {column.lower(): str(kind).lower().strip() for column, kind in types.items()}
    for index, field in enumerate(rows.schema):
        if (spark_type := configured.get(field.name.lower())) is None:
            continue
        kind = _arrow_type(spark_type)
        if kind is None or not pa.types.is_string(field.type):
            return None
        try:
            rows = rows.set_column(index, field.name, _parse(rows.column(index), kind))
        except pa.ArrowInvalid:
            return None
    return rows


def _has_utc_timestamps(context: MaterializationContext) -> bool:
    """Return whether Spark reads times without a zone as UTC; needs no Spark session."""
    settings = context.credentials.spark_conf
    return settings.keys().isdisjoint((TIME_ZONE, TIMESTAMP_TYPE)) and (
        context.has_default_settings()
    )


def _parse(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Parse texts; raise ArrowInvalid for a text that only Spark may be able to parse."""
    if pa.types.is_integer(kind) and pc.any(pc.match_substring_regex(texts, "^-?0[xX]")).as_py():
        raise pa.ArrowInvalid("Spark parses no hexadecimal numbers")
    if pa.types.is_timestamp(kind):
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)
    return texts.cast(kind)


def _arrow_type(spark_type: str) -> pa.DataType | None:
    if match := DECIMAL.fullmatch(spark_type):
        precision, scale = int(match[1]), int(match[2])
        return pa.decimal128(precision, scale) if 1 <= precision <= MAX_DECIMAL_DIGITS else None
    return TEXT_TYPES.get(spark_type)


def _column(rows: agate.Table, index: int) -> pa.Array:
    import agate

    kind = rows.column_types[index]
    values = [row[index] for row in rows.rows]
    if isinstance(kind, agate.Boolean):
        return pa.array(values, pa.bool_())
    if isinstance(kind, agate.Number):
        return _numbers(values)
    if isinstance(kind, agate.DateTime):
        return _datetimes(values)
    if isinstance(kind, agate.Date):
        return pa.array(values, pa.date32())
    return pa.array([None if v is None else str(v) for v in values], pa.string())


def _numbers(values: list[Decimal | None]) -> pa.Array:
    """Convert whole numbers to 64-bit integers, or decimals if too large; others to doubles."""
    present = [v for v in values if v is not None]
    if any(v != int(v) for v in present):
        return pa.array([None if v is None else float(v) for v in values], pa.float64())
    integers = [None if v is None else int(v) for v in values]
    if all(v in INT64 for v in integers if v is not None):
        return pa.array(integers, pa.int64())
    exact = [None if v is None else Decimal(v) for v in integers]
    return pa.array(exact, pa.decimal128(MAX_DECIMAL_DIGITS, 0))


def _datetimes(values: list[Any]) -> pa.Array:
    """Convert times; those without a zone are UTC, the time zone of the engine's sessions."""
    return pa.array(values, pa.timestamp("us", tz="UTC"))
