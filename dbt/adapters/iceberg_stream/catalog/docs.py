"""The catalog in the shape of `dbt docs`: one row for each column of each relation.

`catalog.py` chooses the statistics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dbt_common.contracts.metadata import (
    CatalogTable,
    ColumnMetadata,
    StatsItem,
    TableMetadata,
)

from dbt.adapters.iceberg_stream.catalog.catalog import Description, IcebergCatalog, Name

if TYPE_CHECKING:
    import agate

COLUMNS = (
    "table_database",
    "table_schema",
    "table_name",
    "table_type",
    "table_comment",
    "table_owner",
    "column_name",
    "column_index",
    "column_type",
    "column_comment",
)


def describe(catalog: IcebergCatalog, names: Iterable[Name]) -> list[Description]:
    """Describe relations; those that do not exist are left out.

    Args:
        catalog: the catalog.
        names: of tables and views.
    """
    names = sorted(set(names))
    kinds = {
        (schema, name): kind
        for schema in {schema for schema, _ in names}
        for name, kind in catalog.relations(schema)
    }
    described = (catalog.describe_one(name, kinds[name]) for name in names if name in kinds)
    return [description for description in described if description is not None]


def catalog_table(database: str, relations: Iterable[Description]) -> agate.Table:
    """Return the relations as dbt's catalog table.

    Args:
        database: the catalog's name, for the column `table_database`.
        relations: tables and views.

    Returns:
        The columns of COLUMNS, then four per statistic: label, value, description, include.
    """
    from dbt_common.clients.agate_helper import table_from_data_flat

    rows = [row for relation in relations for row in _rows(database, relation)]
    names = list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)]))
    complete = [{name: row.get(name) for name in names} for row in rows]
    return table_from_data_flat(complete, names)


def _rows(database: str, relation: Description) -> Iterable[dict[str, Any]]:
    namespace, name = relation.name
    statistics = _as_stats_items(relation)
    for index, column in enumerate(relation.columns, 1):
        yield {
            "table_database": database,
            "table_schema": namespace,
            "table_name": name,
            "table_type": relation.kind,
            "table_comment": relation.comment,
            "table_owner": None,
            "column_name": column.name,
            "column_index": index,
            "column_type": column.type,
            "column_comment": column.comment,
            **statistics,
        }


def _as_stats_items(relation: Description) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for identifier, (label, value) in relation.statistics.items():
        cells[f"stats:{identifier}:label"] = label
        cells[f"stats:{identifier}:value"] = value
        cells[f"stats:{identifier}:description"] = f"{label}, from the table's current metadata"
        cells[f"stats:{identifier}:include"] = True
    return cells


def single_relation(database: str, relation: Description) -> CatalogTable:
    """Return one relation as dbt's CatalogTable.

    Args:
        database: the catalog's name.
        relation: the table or view.
    """
    namespace, name = relation.name
    return CatalogTable(
        metadata=TableMetadata(
            type=relation.kind,
            schema=namespace,
            name=name,
            database=database,
            comment=relation.comment,
        ),
        columns={
            column.name: ColumnMetadata(column.type, index, column.name, column.comment)
            for index, column in enumerate(relation.columns, 1)
        },
        stats={
            identifier: StatsItem(identifier, label, value, True, label)
            for identifier, (label, value) in relation.statistics.items()
        },
    )
