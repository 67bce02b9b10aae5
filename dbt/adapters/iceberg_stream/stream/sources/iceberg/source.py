"""Read an Iceberg table by ranges of snapshots: first all its rows, then the later snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata, keeps_rows
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.iceberg.changes import SnapshotChanges, plan_changes
from dbt.adapters.iceberg_stream.stream.sources.iceberg.changes_frame import ChangesFrame
from dbt.adapters.iceberg_stream.stream.sources.iceberg.file_order import (
    order_of_added,
    order_of_all,
)
from dbt.adapters.iceberg_stream.stream.sources.iceberg.first_read import (
    FirstRead,
    plan_first_read,
)
from dbt.adapters.iceberg_stream.stream.sources.iceberg.schema_projection import current_columns
from dbt.adapters.iceberg_stream.stream.sources.source import (
    CHANGE,
    MAJOR,
    MINOR,
    UNKNOWN_ORDER,
    Frontier,
    Lag,
    Source,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

# Snapshots in a batch, at most: each is a scan of its own.
MOST_SNAPSHOTS = 20
# Rows of the snapshot that were read, in a frontier within the first read.
ROWS = "rows"
# Whether the order of these rows was known when the first read began; later, snapshots expire.
ORDERED = "ordered"
# Below all sequence numbers.
V1_MAJOR = -(1 << 32)
FILE, POS = "__file", "__pos"
ORDER_COLUMNS = [FILE, MAJOR, MINOR]


@dataclass
class IcebergSource(Source):
    """A table of the same catalog; a frontier is `{"snapshot-id": …, "table-uuid": …}`.

    Within the first read, it also has the number of `rows` that were read of the snapshot, and
    whether their order is known.

    Attributes:
        catalog: the catalog.
        name: of the table.
        relation: the table's name for Spark.
        skip_changes: whether snapshots that delete or overwrite rows are skipped.
        changes: whether deleted and updated rows are changes of the stream.
        keyed: whether the stream's table has keys, so that the order of rows matters.
        stage: returns a snapshot with the rows of the table's current one that is faster to read;
            None if there is none.
    """

    catalog: IcebergCatalog
    name: Name
    relation: str
    skip_changes: bool = False
    changes: bool = False
    keyed: bool = False
    stage: Callable[[Name], int | None] | None = None
    ordered: bool = field(default=False, init=False)
    _schema_id: str = field(default="", init=False)
    _lacks_order: bool = field(default=False, init=False)
    _others_keyed: bool = field(default=False, init=False)
    _staged: dict[int, int | None] = field(default_factory=dict, init=False)
    _first_reads: dict[int, FirstRead | None] = field(default_factory=dict, init=False)

    @property
    def of_rows(self) -> bool:
        return self.changes

    def empty(
        self, spark: SparkSession, lower: Frontier | None = None, upper: Frontier | None = None
    ) -> DataFrame:
        return self._with_change(spark.table(self.relation).where("false"), 0)

    def present(self, lower: Frontier | None) -> Frontier | None:
        metadata = self._metadata()
        current = parent_snapshot(metadata, MAIN)
        return None if current is None else self._frontier(metadata, current)

    def plan_batch(
        self,
        lower: Frontier | None,
        rows: int,
        until: Frontier | None = None,
        whole: bool = False,
    ) -> Frontier | None:
        if lower is not None and until is not None and lower == until:
            return None
        metadata = self._metadata()
        # Later changes of the schema are noticed when the next batch is planned.
        self._schema_id = str(metadata["current-schema-id"])
        current = parent_snapshot(metadata, MAIN)
        if current is None:
            return None
        if lower is None or ROWS in lower:
            return self._plan_first(lower, until or self._frontier(metadata, current), rows)
        upper, taken, count = None, 0, 0
        for snapshot in self._since(metadata, lower):
            taken += int((snapshot.get("summary") or {}).get("added-records") or 0)
            if upper is not None and (taken > rows or count >= MOST_SNAPSHOTS):
                break
            upper, count = self._frontier(metadata, snapshot), count + 1
            if until is not None and upper == until:
                break
        return upper

    def _plan_first(self, lower: Frontier | None, until: Frontier, rows: int) -> Frontier:
        """Return the end of the next batch of the first read.

        Args:
            lower: where the batch begins, within the first read.
            until: the snapshot that a first read begins with, and where it ends at the latest.
            rows: of a batch.
        """
        begin = 0 if lower is None else lower[ROWS]
        whole = _whole(lower or until)
        cut = lower or (until if ROWS in until else None)
        if cut is None and self._total_rows(whole) <= rows:
            return whole
        first = self._first_read(whole)
        keyed = self.keyed or self._others_keyed
        # Rows of a key must be compared with each other if it is not known which is the last.
        if cut is None and (first is None or (keyed and not first.has_order)):
            return whole
        first = self._require_cut(first, cut, keyed)
        is_same = until["snapshot-id"] == whole["snapshot-id"]
        end = min(begin + rows, until[ROWS] if is_same and ROWS in until else first.rows)
        has_order = first.has_order if cut is None else cut.get(ORDERED, False)
        return whole if end >= first.rows else {**whole, ROWS: end, ORDERED: has_order}

    def _require_cut(self, first: FirstRead | None, cut: Frontier | None, keyed: bool) -> FirstRead:
        """Return the rows of a first read that began in several batches.

        Args:
            first: the rows; None if only Spark can read them.
            cut: a frontier within the first read; None if it begins now.
            keyed: whether the order of the rows must be known.

        Raises:
            StreamError: it cannot go on in several batches.
        """
        if first is not None and (cut is None or not keyed or cut.get(ORDERED)):
            return first
        reason = (
            "a nested column has changed since, or `schema.name-mapping.default` was set"
            if first is None
            else "the order of its rows, which a `unique_key` needs, was not known at its beginning"
        )
        raise StreamError(
            f"The first read of {'.'.join(self.name)} began in several batches and cannot go on: "
            f"{reason}. Rebuild the stream's table, and those of its commit group, with "
            "--full-refresh. The first read is then one batch."
        )

    def _total_rows(self, frontier: Frontier) -> float:
        snapshots = self._metadata().get("snapshots") or []
        summaries = {s["snapshot-id"]: s.get("summary") or {} for s in snapshots}
        return float(summaries.get(frontier["snapshot-id"], {}).get("total-records", "inf"))

    def _first_read(self, snapshot: Frontier) -> FirstRead | None:
        """Return the rows of a snapshot; None if only Spark can read them."""
        number = snapshot["snapshot-id"]
        if number not in self._first_reads:
            table = self._table()
            ancestors = list(_ancestors(table.metadata, number))
            self._after(table.metadata, snapshot)
            self._first_reads[number] = plan_first_read(table, ancestors)
        return self._first_reads[number]

    def schema_id(self, lower: Frontier | None, upper: Frontier | None = None) -> str:
        # Spark reads appended rows with the table's current schema.
        return self._schema_id or str(self._metadata()["current-schema-id"])

    def is_behind(self, lower: Frontier, other: Frontier) -> bool:
        if lower["snapshot-id"] == other["snapshot-id"]:
            return ROWS in lower and lower[ROWS] < other.get(ROWS, lower[ROWS] + 1)
        later = self._since(self._metadata(), lower)
        return any(snapshot["snapshot-id"] == other["snapshot-id"] for snapshot in later)

    def read(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        if ROWS in (lower or upper):
            return self._read_range(spark, lower, upper)
        if lower is None:
            return self._read_all(spark, upper)
        if self.changes:
            return self._read_changes(spark, lower, upper)
        frames, table = [], self._table()
        # Snapshots of format version 1 have no sequence numbers, and come before all others.
        for number, snapshot in enumerate(self._since(table.metadata, lower), V1_MAJOR):
            if self._adds_rows(snapshot):
                reader = spark.read.option("start-snapshot-id", str(snapshot["parent-snapshot-id"]))
                reader = reader.option("end-snapshot-id", str(snapshot["snapshot-id"]))
                # A read of the relation as a table would return the current snapshot.
                frame = reader.format("iceberg").load(self.relation.replace("`", ""))
                order = order_of_added(table.io, snapshot, number) if self.keyed else None
                major = snapshot.get("sequence-number") or number
                frames.append(self._with_change(frame, major, order))
            if snapshot["snapshot-id"] == upper["snapshot-id"]:
                break
        return reduce(lambda a, b: a.unionByName(b), frames) if frames else self.empty(spark)

    def _read_range(
        self, spark: SparkSession, lower: Frontier | None, upper: Frontier
    ) -> DataFrame:
        """Return rows of the first read, between two places in it."""
        cut = upper if lower is None or ROWS in upper else lower
        first = self._require_cut(self._first_read(_whole(upper)), cut, self.keyed)
        begin = 0 if lower is None else lower[ROWS]
        pieces = first.pieces(begin, upper.get(ROWS, first.rows))
        number = upper["snapshot-id"]
        planned = [SnapshotChanges(number, number, 0, pieces, (), False)]
        return ChangesFrame(spark, self.relation, self._table()).of(planned)

    def share_reads(self, other: Source) -> None:
        # One plan is for all tables of a commit group, of which some may have keys.
        self._others_keyed |= isinstance(other, IcebergSource) and other.keyed

    def lacks_order(self, lower: Frontier | None) -> bool:
        return lower is None and self._lacks_order

    def _read_all(self, spark: SparkSession, upper: Frontier) -> DataFrame:
        snapshot_id = self._readable(upper["snapshot-id"])
        reader = spark.read.option("versionAsOf", str(snapshot_id))
        rows, table = reader.table(self.relation), self._table()
        # Spark returns the columns of the snapshot; later snapshots have the current columns.
        types = spark.table(self.relation).schema
        columns = current_columns(table.metadata, upper["snapshot-id"], types)
        order = None
        if self.keyed:
            ancestors = list(_ancestors(table.metadata, upper["snapshot-id"]))
            order = order_of_all(table.io, ancestors)
            self._lacks_order = UNKNOWN_ORDER in order["minor"].to_pylist()
        return self._with_change(rows, 0, order, columns)

    def _readable(self, snapshot_id: int) -> int:
        """Return the snapshot to read for the rows of a snapshot: itself, or a staged one."""
        if snapshot_id not in self._staged:
            self._staged[snapshot_id] = self._stage(snapshot_id)
        return self._staged[snapshot_id] or snapshot_id

    def _stage(self, snapshot_id: int) -> int | None:
        current = parent_snapshot(self._metadata(), MAIN)
        if self.stage is None or current is None or current["snapshot-id"] != snapshot_id:
            return None
        staged = self.stage(self.name)
        snapshots = {s["snapshot-id"]: s for s in self._table().metadata["snapshots"]}
        # Other writers may have committed before it was staged.
        is_same = snapshots.get(staged, {}).get("parent-snapshot-id") == snapshot_id
        return staged if is_same else None

    def lag(self, frontier: Frontier | None) -> Lag:
        metadata = self._metadata()
        if frontier is None:
            return Lag(len(metadata.get("snapshots") or []), "snapshots")
        return Lag(sum(1 for _ in self._since(metadata, frontier)), "snapshots")

    def _read_changes(self, spark: SparkSession, lower: Frontier, upper: Frontier) -> DataFrame:
        table = self._table()
        by_id = {s["snapshot-id"]: s for s in table.metadata["snapshots"]}
        planned = []
        for snapshot in self._since(table.metadata, lower):
            if not keeps_rows(snapshot):
                parent = by_id[snapshot["parent-snapshot-id"]]
                planned.append(plan_changes(table.io, snapshot, parent))
            if snapshot["snapshot-id"] == upper["snapshot-id"]:
                break
        return ChangesFrame(spark, self.relation, table).of(planned)

    def _table(self) -> LoadedTable:
        table = self.catalog.load(self.name)
        if table is None:
            raise self._missing()
        return table

    def _missing(self) -> StreamError:
        return StreamError(
            f"There is no table {'.'.join(self.name)} to stream from. Create it, or set "
            "`config.meta.stream` of a source that is not an Iceberg table, for example to "
            "`type: files`."
        )

    def _metadata(self) -> Metadata:
        metadata = self.catalog.metadata(self.name)
        if metadata is None:
            raise self._missing()
        return metadata

    def _frontier(self, metadata: Metadata, snapshot: Mapping[str, Any]) -> Frontier:
        return {"snapshot-id": snapshot["snapshot-id"], "table-uuid": metadata["table-uuid"]}

    def _since(self, metadata: Metadata, lower: Frontier) -> Iterator[Mapping[str, Any]]:
        """Yield the snapshots after a frontier, oldest first."""
        for later in self._after(metadata, lower):
            self._check(later)
            yield later

    def _after(self, metadata: Metadata, lower: Frontier) -> list[Mapping[str, Any]]:
        """Return the snapshots after a frontier, oldest first.

        Raises:
            StreamError: the frontier's snapshot is no ancestor of the current one.
        """
        name = ".".join(self.name)
        if lower["table-uuid"] != metadata["table-uuid"]:
            raise StreamError(
                f"{name} is another table than the one this stream has read: it was dropped and "
                "created again. Rebuild the stream's table with --full-refresh."
            )
        by_id = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}
        snapshots: list[Mapping[str, Any]] = []
        snapshot: Mapping[str, Any] | None = parent_snapshot(metadata, MAIN)
        while snapshot is not None and snapshot["snapshot-id"] != lower["snapshot-id"]:
            snapshots.append(snapshot)
            snapshot = by_id.get(snapshot.get("parent-snapshot-id", -1))
        if snapshot is None:
            raise StreamError(
                f"The snapshot {lower['snapshot-id']} of {name}, up to which this stream has read, "
                "is not among its ancestors any more: it has expired, or the table was rolled back "
                "or replaced. Rebuild the stream's table with --full-refresh."
            )
        return snapshots[::-1]

    def _check(self, snapshot: Mapping[str, Any]) -> None:
        operation = self._operation(snapshot)
        if operation == "append" or keeps_rows(snapshot) or self.skip_changes or self.changes:
            return
        raise StreamError(
            f"The snapshot {snapshot['snapshot-id']} of {'.'.join(self.name)} is not an append "
            f"({operation}): it updates or deletes rows. Set `changes: true` to stream its changes "
            "to a model with a `unique_key`, or `skip_changes: true` to skip snapshots that are "
            "not appends."
        )

    def _adds_rows(self, snapshot: Mapping[str, Any]) -> bool:
        return self._operation(snapshot) == "append"

    def _operation(self, snapshot: Mapping[str, Any]) -> str | None:
        return (snapshot.get("summary") or {}).get("operation")

    def _with_change(
        self,
        frame: DataFrame,
        major: int,
        order: pa.Table | None = None,
        columns: Sequence[str] = ("*",),
    ) -> DataFrame:
        """Return columns of a frame, with `__stream`.

        Args:
            frame: rows of the table.
            major: of all changes, without an order.
            order: of the files, as rows of FILE_ORDER; None if the order of rows does not matter.
            columns: SQL expressions.
        """
        flags = "'deleted', false, 'truncated', false"
        if order is None:
            position = f"'major', {major}L, 'minor', monotonically_increasing_id()"
            return frame.selectExpr(*columns, f"named_struct({position}, {flags}) as {CHANGE}")
        from pyspark.sql.connect import functions as f
        from pyspark.sql.pandas.types import from_arrow_schema

        rows = frame.selectExpr(*columns, f"_file as {FILE}", f"_pos as {POS}")
        names = [quote(name) for name in rows.columns if name not in (FILE, POS)]
        order = order.rename_columns(ORDER_COLUMNS)
        # Spark's client takes no Arrow table without rows.
        files = f.broadcast(
            frame.sparkSession.createDataFrame(
                order if order.num_rows else [], from_arrow_schema(order.schema)
            )
        )
        # Positions in a file do not order rows whose order is not known.
        minor = f"if({MINOR} >= {UNKNOWN_ORDER}L, {MINOR}, {MINOR} + {POS})"
        # A row of a file that is in no manifest is an error, so that no row is lost.
        known_major = f"coalesce({MAJOR}, bigint(raise_error(concat('No manifest has ', {FILE}))))"
        position = f"'major', {known_major}, 'minor', {minor}"
        return rows.join(files, FILE, "left").selectExpr(
            *names, f"named_struct({position}, {flags}) as {CHANGE}"
        )


def _whole(frontier: Frontier) -> Frontier:
    """Return the end of the first read of a frontier's snapshot."""
    return {key: value for key, value in frontier.items() if key not in (ROWS, ORDERED)}


def _ancestors(metadata: Metadata, snapshot_id: int) -> Iterator[Mapping[str, Any]]:
    """Yield a snapshot and its ancestors that have not expired, newest first."""
    by_id = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}
    snapshot = by_id.get(snapshot_id)
    while snapshot is not None:
        yield snapshot
        snapshot = by_id.get(snapshot.get("parent-snapshot-id", -1))
