"""What readers see of a schema's tables, and in what two schemas differ; DuckDB reads."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, fields
from typing import Any

from pyiceberg.table import Table

from tests.functional.lake import table
from tests.integration.tables import duckdb_connection

# In the name of a table that an atomic build has staged. One of a build that failed has no columns.
STAGED = "__dbt_build_"
# They depend on when a run was; of the last one it counts whether it is set.
TIMES = {"dbt_scd_id", "dbt_updated_at", "dbt_valid_from", "dbt_valid_to"}


@dataclass(frozen=True)
class Contents:
    """What readers see of a table.

    Attributes:
        columns: their names, types and comments, and whether they are required.
        rows: how often each row is there.
        properties: of the table.
        layout: its partitions and its order.
    """

    columns: list[tuple[str, str, bool, str | None]]
    rows: Counter[str]
    properties: dict[str, str]
    layout: tuple[str, str]


def read_tables(project: Any, schema: str, branch: str = "main") -> dict[str, Contents]:
    """Return the contents of the tables of a schema, without those of builds that failed.

    Args:
        project: dbt's fixture.
        schema: the tables' namespace.
        branch: whose rows are read; of a table without it, those of `main`.
    """
    relations = project.adapter.catalog.relations(schema)
    names = [name for name, kind in relations if kind == "table" and STAGED not in name]
    tables = (table(project, name, schema) for name in names)
    return {loaded.name()[-1]: _contents(loaded, branch) for loaded in tables}


def read_version(loaded: Table, snapshot_id: int | None) -> Counter[str]:
    """Return the rows of a version, or, without an id, of the table as it is."""
    version = f", snapshot_from_id={snapshot_id}" if snapshot_id else ""
    path = loaded.metadata_location.removeprefix("file://")
    rows = duckdb_connection().execute(f"select * from iceberg_scan('{path}'{version})")
    return Counter(
        str({name: _comparable(name, value) for name, value in row.items()})
        for row in rows.to_arrow_table().to_pylist()
    )


def differences(expected: dict[str, Contents], actual: dict[str, Contents]) -> list[str]:
    """Return in what tables differ from those that were expected, one text for each part."""
    texts = []
    for name in sorted({*expected, *actual}):
        if name not in expected or name not in actual:
            texts.append(f"{name} is only in the {'expected' if name in expected else 'actual'}")
            continue
        for part in (field.name for field in fields(Contents)):
            one, other = (getattr(tables[name], part) for tables in (expected, actual))
            if one != other and part == "rows":
                texts.append(f"{name}: missing {[*(one - other)]}, too many {[*(other - one)]}")
            elif one != other:
                texts.append(f"{name}: {part} should be {one}, are {other}")
    return texts


def _contents(loaded: Table, branch: str) -> Contents:
    # The branch main has its current schema, also if that is newer than its snapshot's.
    ref = loaded.metadata.refs.get(branch) if branch != "main" else None
    layout = [(field.name, str(field.transform)) for field in loaded.spec().fields]
    return Contents(
        [
            # Writers number the columns within columns in their own order.
            (field.name, re.sub(r"\b\d+: ", "", str(field.field_type)), field.required, field.doc)
            for field in loaded.schema().fields
        ],
        read_version(loaded, ref.snapshot_id if ref else None),
        # A REST catalog may add the time of the table's creation.
        {name: value for name, value in loaded.properties.items() if name != "created-at"},
        (str(layout), str(loaded.sort_order().fields)),
    )


def _comparable(name: str, value: Any) -> Any:
    """Return a value that is equal to another one if readers see no difference."""
    if name in TIMES:
        return name == "dbt_valid_to" and value is None
    if isinstance(value, dict):
        return {key: _comparable("", item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable("", item) for item in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else repr(value)
