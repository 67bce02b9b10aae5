"""Rows that lie in this process, of a seed or a Python model: into a table by our own writer.

Only where the table becomes the one that Spark would make of them; the others go through a view.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from dbt.adapters.base import BaseRelation
from dbt.adapters.contracts.connection import ConnectionState
from dbt.adapters.events.logging import AdapterLogger
from dbt_common.exceptions import DbtDatabaseError

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.storage import StorageError
from dbt.adapters.iceberg_stream.catalog.table_config import TableConfig
from dbt.adapters.iceberg_stream.commit.producer import current_schema, partition_spec
from dbt.adapters.iceberg_stream.commit.stamps import new_write_id, stamps
from dbt.adapters.iceberg_stream.files.casting import ColumnError
from dbt.adapters.iceberg_stream.ingest.ingest import Mode, ingest
from dbt.adapters.iceberg_stream.materializations.python_model import (
    local_rows,
    make_view,
    run_python_model,
)
from dbt.adapters.iceberg_stream.materializations.seed import arrow_table
from dbt.adapters.iceberg_stream.response import IcebergStreamResponse

if TYPE_CHECKING:
    import agate

    from dbt.adapters.iceberg_stream.impl import IcebergStreamAdapter

logger = AdapterLogger("Iceberg_Stream")

# Types of `column_types` whose texts Arrow reads as Spark does, or not at all.
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
TIME_SETTINGS = ("spark.sql.session.timeZone", "spark.sql.timestampType")
DECIMAL = re.compile(r"decimal\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)")


def build_seed(
    adapter: IcebergStreamAdapter,
    relation: BaseRelation,
    seed: agate.Table,
    layout: TableConfig,
    config: Mapping[str, Any],
    view: str,
) -> IcebergStreamResponse | None:
    """Make or replace the table of a seed in one commit.

    None if that is left to Spark: then the rows are the temporary view.

    Raises:
        DbtDatabaseError: the catalog or the storage refuses; nothing was written.
    """
    rows = arrow_table(seed)
    typed = _as_typed(adapter, rows, config.get("column_types") or {})
    response = None if typed is None else _build(adapter, relation, typed, layout, config, "seed")
    if response is None:
        with adapter.connections.exception_handler(f"seed {relation}"):
            adapter.session.register(view, rows)
    return response


def build_python_model(
    adapter: IcebergStreamAdapter,
    relation: BaseRelation,
    code: str,
    layout: TableConfig,
    model: Mapping[str, Any],
    view: str,
) -> IcebergStreamResponse | None:
    """Run a Python model and make its table, as `build_seed`."""
    frame = _run(adapter, model, code)
    with adapter.connections.exception_handler(code):
        rows = local_rows(frame) if _utc_in_session(adapter) else None
    if rows is not None:
        response = _build(adapter, relation, rows, layout, model["config"], "ctas")
        if response is not None:
            return response
    with adapter.connections.exception_handler(code):
        make_view(adapter.session, str(model["unique_id"]), frame, view)
    return None


def run_to_view(
    adapter: IcebergStreamAdapter, model: Mapping[str, Any], code: str, view: str
) -> None:
    """Run a Python model and make its result a temporary view."""
    frame = _run(adapter, model, code)
    with adapter.connections.exception_handler(code):
        make_view(adapter.session, str(model["unique_id"]), frame, view)


def _run(adapter: IcebergStreamAdapter, model: Mapping[str, Any], code: str) -> Any:
    # The model's code may change settings and functions of the session.
    adapter.connections.get_thread_connection().handle.reusable = False
    with adapter.connections.exception_handler(code):
        return run_python_model(adapter.session, str(model["unique_id"]), code)


def _build(
    adapter: IcebergStreamAdapter,
    relation: BaseRelation,
    rows: pa.Table,
    layout: TableConfig,
    config: Mapping[str, Any],
    origin: str,
) -> IcebergStreamResponse | None:
    name = str(relation.schema), str(relation.identifier)
    if (because := _why_spark(adapter, name, rows, layout, config)) is not None:
        logger.debug(f"The rows of {relation} go through Spark: {because}")
        return None
    said = stamps(new_write_id(), adapter.connections.principal)
    try:
        data = rows.to_reader()
        done = ingest(adapter.lake, name, data, Mode.REPLACE, origin=origin, stamps=said)
    except ColumnError as error:
        logger.debug(f"The rows of {relation} go through Spark: {error}")
        return None
    except (CatalogError, StorageError) as error:
        raise DbtDatabaseError(str(error)) from error
    adapter.connections.refresh_cached(relation.render())
    outcome = asdict(done.outcome)
    outcome.pop("operation")
    return IcebergStreamResponse(
        f"CREATE {done.rows:,} rows", code="CREATE", relation=".".join(name), **outcome
    )


def _why_spark(
    adapter: IcebergStreamAdapter,
    name: tuple[str, str],
    rows: pa.Table,
    layout: TableConfig,
    config: Mapping[str, Any],
) -> str | None:
    if adapter.config.credentials.method == "connect":
        return "the cluster is nearer to the storage"
    if not layout.is_default or config.get("contract", {}).get("enforced"):
        return "it has a layout or a contract"
    names = [column.lower() for column in rows.column_names]
    if len(set(names)) < len(names) or any("." in column for column in names):
        return "Spark refuses a column's name"
    metadata = adapter.lake.metadata(name)
    return None if metadata is None else _what_it_would_keep(metadata)


def _what_it_would_keep(metadata: Metadata) -> str | None:
    """What of a table our way of replacing it keeps, and Spark's does not."""
    if "versions" in metadata:
        return "a view stands in its place"
    spec = partition_spec(metadata, metadata["default-spec-id"])
    # The order without fields has this number (spec, "Sorting").
    if spec.fields or metadata["default-sort-order-id"] or metadata["format-version"] != 2:
        return "the table that it replaces has a layout"
    if any(field.doc for field in current_schema(metadata).fields):
        return "the columns that it replaces have comments"
    return None


def _utc_by_profile(adapter: IcebergStreamAdapter) -> bool:
    """Whether Spark would take times without a zone as UTC, and nobody has told it otherwise."""
    if set(TIME_SETTINGS) & set(adapter.config.credentials.spark_conf):
        return False
    connection = adapter.connections.get_if_exists()
    opened = connection is not None and connection.state == ConnectionState.OPEN
    return not opened or connection.handle.reusable


def _utc_in_session(adapter: IcebergStreamAdapter) -> bool:
    settings = adapter.session.settings(TIME_SETTINGS)
    return settings == {TIME_SETTINGS[0]: "UTC"}


def _as_typed(
    adapter: IcebergStreamAdapter, rows: pa.Table, types: Mapping[str, str]
) -> pa.Table | None:
    """The rows with the types that the seed asks for; None if Spark must read the texts."""
    if not _utc_by_profile(adapter):
        return None
    wanted = {column.lower(): str(kind).lower().strip() for column, kind in types.items()}
    for at, field in enumerate(rows.schema):
        if (asked := wanted.get(field.name.lower())) is None:
            continue
        kind = _arrow_type(asked)
        if kind is None or not pa.types.is_string(field.type):
            return None
        try:
            rows = rows.set_column(at, field.name, _parsed(rows.column(at), kind))
        except pa.ArrowInvalid:
            return None
    return rows


def _parsed(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Raises ArrowInvalid for what Arrow does not read; Spark may."""
    if pa.types.is_integer(kind) and pc.any(pc.match_substring_regex(texts, "^-?0[xX]")).as_py():
        raise pa.ArrowInvalid("Spark reads no hexadecimal numbers")
    if pa.types.is_timestamp(kind):
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)
    return texts.cast(kind)


def _arrow_type(asked: str) -> pa.DataType | None:
    if match := DECIMAL.fullmatch(asked):
        precision, scale = int(match[1]), int(match[2])
        return pa.decimal128(precision, scale) if 1 <= precision <= 38 else None
    return TEXT_TYPES.get(asked)
