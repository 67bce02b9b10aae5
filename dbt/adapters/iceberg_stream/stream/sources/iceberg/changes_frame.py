"""Read a table's changes as a Spark frame: tasks read the pieces of the snapshots' files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.iceberg import file_rows
from dbt.adapters.iceberg_stream.stream.sources.iceberg.changes import Piece, SnapshotChanges
from dbt.adapters.iceberg_stream.stream.sources.iceberg.file_rows import (
    CHANGE_TYPE,
    PIECE,
    FileRows,
)
from dbt.adapters.iceberg_stream.stream.sources.iceberg.schema_projection import current_columns
from dbt.adapters.iceberg_stream.stream.sources.source import CHANGE
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.worker_code import READS_FILES

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

WORKER_CODE = (*READS_FILES, file_rows)
SNAPSHOT = "__snapshot"
# Attributes of a piece that a task is given as they are.
PIECE_FIELDS = ("location", "deleted", "major", "minor", "takes", "only_keys", "begin", "end")
# Bytes of stored files that a task reads.
TASK_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class ChangesFrame:
    """Reads the changes of one table.

    Attributes:
        spark: the Spark session.
        relation: the table's name for Spark.
        table: the table.
    """

    spark: SparkSession
    relation: str
    table: LoadedTable

    def of(self, planned: Sequence[SnapshotChanges]) -> DataFrame:
        """Return a frame of the changes of snapshots.

        Args:
            planned: the changes, by `plan_changes`.

        Returns:
            A frame with the current columns of the table and `__stream`.

        Raises:
            StreamError: the table has a column whose type cannot be read.
        """
        uncompared = self._rows([changes for changes in planned if not changes.compared])
        compared = self._rows([changes for changes in planned if changes.compared])
        frames = [] if uncompared is None else [uncompared]
        frames += [] if compared is None else [self._without_unchanged(compared)]
        return _union(frames or [self._read([])]).drop(SNAPSHOT)

    def _rows(self, planned: Sequence[SnapshotChanges]) -> DataFrame | None:
        pieces = [(piece, each.snapshot_id) for each in planned for piece in each.pieces]
        frames = [self._read(pieces)] if pieces else []
        frames += [self._scan(each) for each in planned if each.scanned]
        return _union(frames) if frames else None

    def _without_unchanged(self, rows: DataFrame) -> DataFrame:
        """Return rows without those that a snapshot both deletes and adds, with equal values."""
        from pyspark.sql.connect import functions as f

        names = [quote(name) for name in rows.columns if name != CHANGE]
        sides = f.min(f"{CHANGE}.deleted").alias("__min"), f.max(f"{CHANGE}.deleted").alias("__max")
        grouped = rows.groupBy(*names).agg(f.max(CHANGE).alias(CHANGE), *sides)
        return grouped.where("__min = __max").drop("__min", "__max")

    def _read(self, pieces: Sequence[tuple[Piece, int]]) -> DataFrame:
        from pyspark import cloudpickle
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(self._output, prefer_timestamp_ntz=True)
        if not pieces:
            return self.spark.createDataFrame([], schema)
        for module in WORKER_CODE:
            cloudpickle.register_pickle_by_value(module)
        tasks = min(len(pieces), 1 + sum(piece.size for piece, _ in pieces) // TASK_BYTES)
        task_input = self.spark.createDataFrame(self._piece_rows(pieces)).repartition(tasks)
        return task_input.mapInArrow(self._reader.run, schema)

    def _piece_rows(self, pieces: Sequence[tuple[Piece, int]]) -> pa.Table:
        """Return pieces, each with its snapshot, as rows of PIECE."""
        columns = {name: [vars(piece)[name] for piece, _ in pieces] for name in PIECE_FIELDS}
        columns["path"] = [self._target.path_of(piece.location) for piece, _ in pieces]
        columns["snapshot"] = [number for _, number in pieces]
        columns["constants"] = [
            self._target.constants(piece.file) if piece.file else () for piece, _ in pieces
        ]
        # Python lists would take too much memory for many positions.
        parts = [piece.positions for piece, _ in pieces]
        offsets = pa.array(itertools.accumulate(map(len, parts), initial=0), pa.int32())
        positions = pa.ListArray.from_arrays(offsets, pa.concat_arrays(parts))
        arrays = [
            positions if field.name == "positions" else pa.array(columns[field.name], field.type)
            for field in PIECE
        ]
        return pa.Table.from_arrays(arrays, schema=PIECE)

    def _scan(self, changes: SnapshotChanges) -> DataFrame:
        """Return the rows of removed files that were live in the parent snapshot."""
        from pyspark.sql.connect import functions as f

        reader = self.spark.read.option("versionAsOf", str(changes.parent_id))
        rows = reader.table(self.relation).where(f.col("_file").isin(list(changes.scanned)))
        change = (
            f"named_struct('major', {changes.first}L, 'minor', 0L, "
            "'deleted', true, 'truncated', false)"
        )
        return rows.selectExpr(
            *current_columns(self.table.metadata, changes.parent_id, self._columns),
            f"{change} as {CHANGE}",
            f"{changes.snapshot_id}L as {SNAPSHOT}",
        )

    @cached_property
    def _target(self) -> WriteTarget:
        return WriteTarget.of(self.table.metadata, self.table.io)

    @cached_property
    def _columns(self) -> StructType:
        return self.spark.table(self.relation).schema

    @cached_property
    def _output(self) -> pa.Schema:
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = to_arrow_schema(self._columns)
        # An equality delete has no other columns of the row than its key.
        fields = [field.with_nullable(True) for field in columns]
        fields += [pa.field(CHANGE, CHANGE_TYPE), pa.field(SNAPSHOT, pa.int64())]
        return pa.schema(fields)

    @cached_property
    def _reader(self) -> FileRows:
        try:
            schema = self._target.file_schema
        except ColumnError as error:
            raise StreamError(
                f"The changes of {self.relation} cannot be read. {error} Drop the column from that "
                "table, or read the table with a model that is no stream."
            ) from error
        return FileRows(
            self._target.filesystem(),
            pa.schema([field.with_nullable(True) for field in schema]),
            self._output,
        )


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda a, b: a.unionByName(b), frames)
