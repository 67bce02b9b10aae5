"""Answers Flight SQL's metadata commands about the server and the catalog."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyarrow.compute import match_like

from dbt.adapters.iceberg_stream.__version__ import version
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema

TABLE_TYPES = ("table", "view")
# FlightSql.proto, `SqlInfo`: the server's name and version, Arrow's version, and read-only or not.
SQL_INFO: dict[int, str | bool] = {
    0: "dbt-iceberg-stream",
    1: version,
    2: pa.__version__,
    3: False,
}
_VALUES = pa.dense_union(
    [
        pa.field("string_value", pa.string()),
        pa.field("bool_value", pa.bool_()),
        pa.field("bigint_value", pa.int64()),
        pa.field("int32_bitmask", pa.int32()),
        pa.field("string_list", pa.list_(pa.string())),
        pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
    ]
)
SCHEMAS = {
    "CommandGetSqlInfo": pa.schema(
        [pa.field("info_name", pa.uint32(), False), pa.field("value", _VALUES, False)]
    ),
    "CommandGetCatalogs": pa.schema([pa.field("catalog_name", pa.string(), False)]),
    "CommandGetDbSchemas": pa.schema(
        [pa.field("catalog_name", pa.string()), pa.field("db_schema_name", pa.string(), False)]
    ),
    "CommandGetTables": pa.schema(
        [
            pa.field("catalog_name", pa.string()),
            pa.field("db_schema_name", pa.string()),
            pa.field("table_name", pa.string(), False),
            pa.field("table_type", pa.string(), False),
        ]
    ),
    "CommandGetTableTypes": pa.schema([pa.field("table_type", pa.string(), False)]),
}


def schema_of(name: str, command: Any) -> pa.Schema:
    """Return the columns of a command's result, as Flight SQL specifies them.

    Args:
        name: of the command.
        command: the command.
    """
    schema = SCHEMAS[name]
    if name == "CommandGetTables" and command.include_schema:
        return schema.append(pa.field("table_schema", pa.binary(), False))
    return schema


def answer(name: str, command: Any, catalog: IcebergCatalog) -> pa.Table:
    """Return the result of a metadata command.

    Args:
        name: of the command.
        command: the command.
        catalog: the catalog, with the caller's token.

    Raises:
        CatalogError: the catalog refuses.
    """
    schema = schema_of(name, command)
    if name == "CommandGetSqlInfo":
        return _sql_info(schema, set(command.info))
    if name == "CommandGetCatalogs":
        return pa.Table.from_pylist([{"catalog_name": catalog.name}], schema)
    if name == "CommandGetTableTypes":
        return pa.Table.from_pylist([{"table_type": kind} for kind in TABLE_TYPES], schema)
    if command.catalog and command.catalog != catalog.name:
        return schema.empty_table()
    namespaces = _matching(catalog.namespaces(), command.db_schema_filter_pattern)
    if name == "CommandGetDbSchemas":
        rows = [
            {"catalog_name": catalog.name, "db_schema_name": namespace} for namespace in namespaces
        ]
        return pa.Table.from_pylist(rows, schema)
    return pa.Table.from_pylist(_tables(catalog, namespaces, command), schema)


def _tables(catalog: IcebergCatalog, namespaces: list[str], command: Any) -> list[dict[str, Any]]:
    rows = []
    for namespace in namespaces:
        relations = dict(catalog.relations(namespace))
        for table in _matching(relations, command.table_name_filter_pattern):
            kind = relations[table]
            if command.table_types and kind not in command.table_types:
                continue
            row = {"catalog_name": catalog.name, "db_schema_name": namespace}
            row |= {"table_name": table, "table_type": kind}
            if command.include_schema:
                row["table_schema"] = (
                    _arrow_schema(catalog, (namespace, table)).serialize().to_pybytes()
                )
            rows.append(row)
    return rows


def _arrow_schema(catalog: IcebergCatalog, name: tuple[str, str]) -> pa.Schema:
    metadata = catalog.metadata(name)
    if metadata is None or "versions" in metadata:
        return pa.schema([])
    return file_schema(current_schema(metadata)).remove_metadata()


def _sql_info(schema: pa.Schema, numbers: set[int]) -> pa.Table:
    info = {k: v for k, v in SQL_INFO.items() if not numbers or k in numbers}
    texts = [v for v in info.values() if isinstance(v, str)]
    flags = [v for v in info.values() if isinstance(v, bool)]
    kinds = [int(isinstance(v, bool)) for v in info.values()]
    offsets = [kinds[:i].count(kind) for i, kind in enumerate(kinds)]
    children = [pa.array(texts, pa.string()), pa.array(flags, pa.bool_())]
    children += [pa.array([], field.type) for field in list(_VALUES)[2:]]
    values = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        children,
        [field.name for field in _VALUES],
    )
    return pa.Table.from_arrays([pa.array(list(info), pa.uint32()), values], schema=schema)


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names that match a LIKE pattern; an empty pattern matches all."""
    array = pa.array(list(names), pa.string())
    # Its time is linear in the length of the name; Python's expressions can take for ever.
    return array.filter(match_like(array, pattern)).to_pylist() if pattern else array.to_pylist()
