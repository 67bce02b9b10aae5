"""Build the table of a seed from the rows of its CSV file, with the types that dbt infers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from dbt.adapters.base import BaseRelation
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.catalog.table_config import TableConfig
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.materializations.local_table import (
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
FLOATS = {"double": pa.float64(), "float": pa.float32(), "real": pa.float32()}
DECIMAL = re.compile(r"decimal\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)")
# Texts that Arrow may parse: it also takes `nan(1)` or hours alone, which Spark refuses.
INTEGER_TEXT = r"^[+-]?[0-9]+$"
DOUBLE_TEXT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
NOT_ZERO_TEXT = r"^[^eE]*[1-9]"
TIMESTAMP_TEXT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?$"
# Digits of a number that dbt reads without rounding; Python's default is 28.
EXACT_DIGITS = 1000


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
        CompilationError: a number cannot be stored; nothing was written.
        DbtDatabaseError: the catalog or the storage refuses; nothing was written.
    """
    rows = arrow_table(seed)
    types = {
        column.lower(): str(kind).lower().strip()
        for column, kind in (config.get("column_types") or {}).items()
    }
    _check_floats(rows, types)
    typed = _cast_columns(context, rows, types)
    response = (
        None if typed is None else build_from_rows(context, relation, typed, layout, config, "seed")
    )
    if response is None:
        with context.database_errors(f"seed {relation}"):
            context.session().register(view, rows)
    return response


def read_seed(load: Callable[[], agate.Table], delimiter: str) -> agate.Table:
    """Read a seed with all digits of its numbers.

    Args:
        load: reads it, with dbt's types.
        delimiter: of the file.

    Raises:
        CompilationError: a cell such as `-nan` is a number to Python only.
    """
    with localcontext() as context:
        context.prec = EXACT_DIGITS
        # Otherwise `1e1000000` ends with Python's error, and `1e-2000000` is 0.
        context.Emax, context.Emin = MAX_EMAX, MIN_EMIN
        rows = load()
    odd = [
        name
        for name, column in rows.columns.items()
        if any(isinstance(value, Decimal) and value.is_nan() for value in column)
    ]
    if odd:
        from dbt_common.clients.agate_helper import from_csv

        texts = from_csv(rows.original_abspath, odd, delimiter)
        for name in odd:
            for text in texts.columns[name]:
                if "nan" in (text or "").lower() and text.strip().lower() != "nan":
                    raise _bad_number(name, text, "is not a number")
    return rows


def arrow_table(rows: agate.Table) -> pa.Table:
    """Convert a seed to Arrow; empty cells are null in columns of all types.

    Args:
        rows: the seed.

    Raises:
        CompilationError: a number has more digits than Iceberg can store.
    """
    columns = [_column(rows, index) for index in range(len(rows.column_names))]
    return pa.Table.from_arrays(columns, names=list(rows.column_names))


def _check_floats(rows: pa.Table, types: Mapping[str, str]) -> None:
    """Check that no number becomes infinite or 0, as Spark and Arrow would store it.

    Args:
        rows: the seed.
        types: `column_types`, in lower case.

    Raises:
        CompilationError: a number is beyond the range of the column's type.
    """
    for name in rows.column_names:
        spark_type = types.get(name.lower(), "")
        texts = rows[name]
        if spark_type not in FLOATS or not pa.types.is_string(texts.type):
            continue
        texts = texts.filter(pc.match_substring_regex(pc.utf8_trim_whitespace(texts), DOUBLE_TEXT))
        numbers = pc.utf8_trim_whitespace(texts).cast("double").cast(FLOATS[spark_type])
        is_zero = pc.and_(pc.equal(numbers, 0), pc.match_substring_regex(texts, NOT_ZERO_TEXT))
        for text in texts.filter(pc.or_(pc.is_inf(numbers), is_zero)):
            raise _bad_number(name, text.as_py(), f"is beyond the range of `{spark_type}`")


def _cast_columns(
    context: MaterializationContext, rows: pa.Table, types: Mapping[str, str]
) -> pa.Table | None:
    """Cast the columns to `column_types`; return None if Spark must parse the texts."""
    if TIMESTAMP_TYPE in context.credentials.spark_conf or not context.has_default_settings():
        return None
    for index, field in enumerate(rows.schema):
        if (spark_type := types.get(field.name.lower())) is None:
            continue
        kind = _arrow_type(spark_type)
        if kind is None or not pa.types.is_string(field.type):
            return None
        try:
            rows = rows.set_column(index, field.name, _parse(rows.column(index), kind))
        except pa.ArrowInvalid:
            return None
    return rows


def _parse(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Parse texts; raise ArrowInvalid for a text that only Spark may be able to parse."""
    pattern = _pattern(kind)
    if pattern and pc.all(pc.match_substring_regex(texts, pattern)).as_py() is False:
        raise pa.ArrowInvalid(f"Spark parses some texts as {kind}")
    if pa.types.is_timestamp(kind):
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)
    return texts.cast(kind)


def _pattern(kind: pa.DataType) -> str | None:
    """Return the pattern of the texts that Arrow parses as Spark does; None for all."""
    if pa.types.is_integer(kind):
        return INTEGER_TEXT
    if pa.types.is_floating(kind):
        return DOUBLE_TEXT
    if pa.types.is_timestamp(kind):
        return TIMESTAMP_TEXT
    if pa.types.is_decimal(kind):
        # More digits overflow without an error, or are cut where Spark rounds.
        whole = kind.precision - kind.scale
        return rf"^[+-]?0*[0-9]{{0,{whole}}}(\.[0-9]{{0,{kind.scale}}})?$"
    return None


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
        return _numbers(rows.column_names[index], values)
    if isinstance(kind, agate.DateTime):
        # Those without a zone are UTC, whatever the time zone of the session is.
        return pa.array(values, pa.timestamp("us", tz="UTC"))
    if isinstance(kind, agate.Date):
        return pa.array(values, pa.date32())
    return pa.array([None if v is None else str(v) for v in values], pa.string())


def _numbers(name: str, values: Sequence[Decimal | None]) -> pa.Array:
    """Convert whole numbers to 64-bit integers, or decimals if too large; others to doubles."""
    present = [v for v in values if v is not None]
    if not all(v.is_finite() and v == v.to_integral_value() for v in present):
        return pa.array([None if v is None else _double(name, v) for v in values], pa.float64())
    for value in present:
        if value.adjusted() >= MAX_DECIMAL_DIGITS:
            reason = f"has more than the {MAX_DECIMAL_DIGITS} digits of Iceberg's decimals"
            raise _bad_number(name, _shown(value), reason)
    integers = [None if v is None else int(v) for v in values]
    if all(v in INT64 for v in integers if v is not None):
        return pa.array(integers, pa.int64())
    exact = [None if v is None else Decimal(v) for v in integers]
    return pa.array(exact, pa.decimal128(MAX_DECIMAL_DIGITS, 0))


def _double(name: str, value: Decimal) -> float:
    number = float(value)
    if value.is_finite() and (math.isinf(number) or (value and not number)):
        raise _bad_number(name, _shown(value), "is beyond the range of `double`")
    return number


def _shown(value: Decimal) -> str:
    if 0 <= value.adjusted() < 100:
        return f"{value:f}"
    return text if len(text := str(value)) < 100 else f"{value:.5E}"


def _bad_number(column: str, text: str, reason: str) -> CompilationError:
    return CompilationError(
        f"The number {text} in column `{column}` of the seed {reason}. Set the column's type in "
        "`column_types`, e.g. to string."
    )
