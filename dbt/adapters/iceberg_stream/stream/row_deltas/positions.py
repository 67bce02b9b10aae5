"""Finds rows by their keys with a query of the table, where no index of them is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from dbt.adapters.iceberg_stream.catalog.locations import spark_path
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.sql.quoting import quote

# Positions of rows by the location of their data file.
Positions = Mapping[str, pa.Int64Array]


def find_positions(
    session: Session, relation: str, keys: Sequence[str], locations: Sequence[str]
) -> Positions:
    """Find the rows of a table whose keys are in some Parquet files.

    Args:
        session: of the engine.
        relation: the table's name for Spark.
        keys: columns that identify a row.
        locations: of the Parquet files with the keys.
    """
    match = " and ".join(f"t.{quote(key)} <=> k.{quote(key)}" for key in keys)
    sql = (
        f"select t._file as file, t._pos as pos from {relation} as t "
        f"left semi join __stream_keys as k on {match}"
    )
    rows = session.rows(sql, __stream_keys=session.spark.read.parquet(*map(spark_path, locations)))
    by_file = rows.group_by("file").aggregate([("pos", "list")]).to_batches()
    return {
        batch["file"][n].as_py(): batch["pos_list"][n].values
        for batch in by_file
        for n in range(batch.num_rows)
    }
