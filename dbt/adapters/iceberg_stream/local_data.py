"""Rows that lie in this process, as a seed's do: into a table by our own writer, without Spark.

Only where the table becomes the one that Spark would make of them; the others go through a view.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from dbt.adapters.base import BaseRelation
from dbt.adapters.events.logging import AdapterLogger
from dbt_common.events.contextvars import get_node_info
from dbt_common.exceptions import DbtDatabaseError
from dbt_common.invocation import get_invocation_id

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.table_config import TableConfig
from dbt.adapters.iceberg_stream.commit.stamps import new_write_id, stamps
from dbt.adapters.iceberg_stream.files.casting import ColumnError
from dbt.adapters.iceberg_stream.ingest.ingest import Mode, ingest
from dbt.adapters.iceberg_stream.ingest.seeds import arrow_table
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
TIME_ZONE = "spark.sql.session.timeZone"
DECIMAL = re.compile(r"decimal\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)")


def build_seed(
    adapter: IcebergStreamAdapter,
    relation: BaseRelation,
    seed: agate.Table,
    layout: TableConfig,
    config: Mapping[str, Any],
    view: str,
) -> IcebergStreamResponse | None:
    """Make or replace the table in one commit.

    None if that is left to Spark: then the rows are the temporary view.

    Raises:
        DbtDatabaseError: the catalog or the storage refuses; nothing was written.
    """
    rows = arrow_table(seed)
    response = _build(adapter, relation, rows, layout, config)
    if response is None:
        with adapter.connections.exception_handler(f"seed {relation}"):
            adapter.session.register(view, rows)
    return response


def _build(
    adapter: IcebergStreamAdapter,
    relation: BaseRelation,
    rows: pa.Table,
    layout: TableConfig,
    config: Mapping[str, Any],
) -> IcebergStreamResponse | None:
    name = str(relation.schema), str(relation.identifier)
    if (because := _why_spark(adapter, name, rows, layout, config)) is not None:
        logger.debug(f"The rows of {relation} go through Spark: {because}")
        return None
    types = config.get("column_types") or {}
    if TIME_ZONE in adapter.config.credentials.spark_conf and "timestamp" in str(types).lower():
        return None  # without it texts without a zone are UTC
    typed = _as_typed(rows, types)
    if typed is None:
        return None
    said = _stamps(adapter.connections.principal)
    try:
        data = typed.to_reader()
        done = ingest(adapter.lake, name, data, Mode.REPLACE, origin="seed", stamps=said)
    except ColumnError as error:
        logger.debug(f"The rows of {relation} go through Spark: {error}")
        return None
    except CatalogError as error:
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
    if (metadata := adapter.lake.metadata(name)) is None:
        return None
    if "versions" in metadata:
        return "a view stands in its place"
    kept = [metadata["default-spec-id"] or None, metadata["default-sort-order-id"] or None]
    if any(kept) or metadata["format-version"] != 2:
        return "the table that it replaces has a layout"
    return None


def _as_typed(rows: pa.Table, types: Mapping[str, str]) -> pa.Table | None:
    """The rows with the types that the seed asks for; None if Spark must read the texts."""
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
    if pa.types.is_timestamp(kind):
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)
    return texts.cast(kind)


def _arrow_type(asked: str) -> pa.DataType | None:
    if match := DECIMAL.fullmatch(asked):
        precision, scale = int(match[1]), int(match[2])
        return pa.decimal128(precision, scale) if 1 <= precision <= 38 else None
    return TEXT_TYPES.get(asked)


def _stamps(principal: str) -> dict[str, str]:
    info = get_node_info()
    node_id, model = str(info.get("unique_id") or ""), str(info.get("node_name") or "")
    return stamps(new_write_id(), get_invocation_id(), node_id, model, principal)
