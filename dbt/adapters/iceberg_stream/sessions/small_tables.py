"""Replaces small tables: Spark runs the query, and this process writes the rows.

For a few rows, a job of Spark that writes files, and Spark's commit, take longer than the query.
"""

from __future__ import annotations

import getpass
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dbt.adapters.events.logging import AdapterLogger
from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from dbt.adapters.iceberg_stream.builds.names import without_build
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, TableChanged
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, current_snapshot
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.sessions.storage_reach import StorageReach
from dbt.adapters.iceberg_stream.sql.queries import multiplies_rows, reads
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.sql.statements import replacing_query
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome, read_outcome
from dbt.adapters.iceberg_stream.tables.commit.read_set import (
    ReadSet,
    Views,
    capture_read_set,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.proto import DataType

    from dbt.adapters.iceberg_stream.engines.session import Session

logger = AdapterLogger("Iceberg_Stream")

# Bytes of Arrow data for each row of `small_table_rows`: wide rows are better written by Spark.
BYTES_PER_ROW = 200
# The most rows of all inputs of a query that Spark interprets. With more, generated code is faster
# once it is compiled, and a project's next run finds it compiled.
INTERPRETED_ROWS = 5_000
# Attempts to replace a table that other writers create, drop or change.
ATTEMPTS = 5
# The module that writes tables, and how many tables of a command Spark writes before the module is
# imported: PyIceberg, and pandas with PyArrow's datasets, take half a second.
WRITER = "dbt.adapters.iceberg_stream.tables.ingest.ingest"
TABLES_OF_SPARK = 2
# Settings of Spark by which its writes differ from those of this process.
WRITE_SETTINGS = ("spark.wap.", "spark.sql.iceberg.")


@dataclass(frozen=True)
class SmallTables:
    """Replaces those tables of a profile's catalogs that have few rows.

    Attributes:
        catalogs: the catalogs.
        most_rows: the most rows of a small table.
        reach: the storage that this process writes to.
        interpret: whether Spark interprets queries that read few rows. To know how many rows they
            read takes a request for each table if the catalog is not in a file.
        earlier_tables: counts the small tables of the command, for all of its connections.
    """

    catalogs: Catalogs
    most_rows: int
    reach: StorageReach
    interpret: bool = True
    earlier_tables: Iterator[int] = field(default_factory=itertools.count)

    def query_of(self, sql: str, name: QualifiedName, views: Views) -> str | None:
        """Return the query of a statement that replaces a table, if its rows are probably few.

        The table's last version tells. For a new table, the rows of all tables that the query reads
        must be few.

        Args:
            sql: the statement.
            name: the table.
            views: what the temporary views of the session read, as for `capture_read_set`.
        """
        if (query := replacing_query(sql)) is None:
            return None
        try:
            # A build stages a table that it has not built yet without rows.
            metadata = self.catalogs.metadata(without_build(name))
            if not self.reach.includes(self.catalogs.split(name)[0].name, metadata):
                return None
            is_small = (
                self._is_small(metadata)
                if metadata is not None
                else self._reads_few_rows(query, views, self.most_rows) is not None
            )
        except CatalogError:
            return None  # Spark's statement fails, too, and says why
        return query if is_small and self._is_worth_importing() else None

    def _is_worth_importing(self) -> bool:
        """Return whether this process should write a small table, rather than Spark.

        For the first tables of a command, to import what writes them takes longer.
        """
        return WRITER in sys.modules or next(self.earlier_tables) >= TABLES_OF_SPARK

    def fetch(
        self, session: Session, query: str, views: Views | None
    ) -> tuple[pa.Table, DataType.Struct] | None:
        """Run a query, and return its rows and their schema; None if they are too many.

        Args:
            session: runs the query.
            query: the query.
            views: what the temporary views of the session read, as for `capture_read_set`; None if
                settings of the session must not be changed.

        Raises:
            StatementError: Spark does not run it.
        """
        interpreted = views is not None and self.computes_few_rows(query, views)
        size = self.most_rows * BYTES_PER_ROW
        return session.few_rows(query, self.most_rows, size, interpreted)

    def computes_few_rows(self, query: str, views: Views) -> bool:
        """Return whether a query reads few rows, and does not make many of them.

        Args:
            query: the query.
            views: what the temporary views of the session read, as for `capture_read_set`.
        """
        try:
            read_set = (
                self._reads_few_rows(query, views, min(self.most_rows, INTERPRETED_ROWS))
                if self.interpret
                else None
            )
        except CatalogError:
            return False
        if read_set is None:
            return False
        return not any(map(multiplies_rows, (query, *read_set.definitions)))

    def had_few_changes(self, name: QualifiedName) -> bool:
        """Return whether the last write to a table changed few rows, so that the next one may, too.

        Args:
            name: the table.
        """
        metadata = self.catalogs.metadata(without_build(name))
        if metadata is None or "versions" in metadata:
            return False
        snapshot = current_snapshot(metadata)
        changed = read_outcome(snapshot).rows_affected if snapshot else 0
        return min(changed, _rows(metadata)) <= self.most_rows

    def _reads_few_rows(self, query: str, views: Views, most_rows: int) -> ReadSet | None:
        """Return what a query reads, if all its tables together have at most so many rows."""
        relations: dict[QualifiedName, Metadata] = {}
        read_set = capture_read_set(self.catalogs, reads(query), views, relations)
        if read_set is None:
            return None
        tables = [metadata for metadata in relations.values() if "versions" not in metadata]
        is_small = all(map(self._is_small, tables)) and sum(map(_rows, tables)) <= most_rows
        return read_set if is_small else None

    def _is_small(self, metadata: Metadata) -> bool:
        """Return whether a table, not a view, has few rows and bytes."""
        if "versions" in metadata:
            return False
        size = _total(metadata, "total-files-size")
        return _rows(metadata) <= self.most_rows and size <= self.most_rows * BYTES_PER_ROW

    def replace(
        self,
        session: Session,
        name: QualifiedName,
        query: str,
        views: Views,
        properties: Mapping[str, str],
        confirm: Callable[[], None],
    ) -> Outcome | None:
        """Replace a table with the rows of a query in one commit, unless Spark must.

        Args:
            session: runs the query.
            name: the table.
            query: the query.
            views: what the temporary views of the session read, as for `capture_read_set`.
            properties: snapshot properties.
            confirm: is called before the commit; raises to cancel it.

        Returns:
            The commit's outcome; None if nothing was written, because Spark must write the table.

        Raises:
            StatementError: Spark, the catalog or the storage refuses; nothing was written.
        """
        label = ".".join(name)
        catalog, table = self.catalogs.split(name)
        fetched = self.fetch(session, query, views) if self._may_replace(name) else None
        if fetched is None:
            logger.debug(f"Spark writes {label}: it is too large, or has a layout")
            return None
        rows, schema = fetched
        if (kind := _unwritten_column(schema)) is not None:
            logger.debug(f"Spark writes {label}: it has {kind}")
            return None
        comments = {
            field.name: comment
            for field in schema.fields
            if (comment := _comment(field)) is not None
        }
        outcome = self._write(name, rows, comments, properties, confirm)
        if outcome is not None:
            session.refresh(".".join(map(quote, (catalog.name, *table))))
        return outcome

    def _may_replace(self, name: QualifiedName, columns: Sequence[str] = ()) -> bool:
        """Return whether a table that this process writes is the one that Spark would write."""
        from dbt.adapters.iceberg_stream.tables.ingest.replacement import why_spark_replaces

        try:
            return why_spark_replaces(columns, self.catalogs.metadata(name)) is None
        except CatalogError as error:
            raise StatementError(str(error)) from error

    def _write(
        self,
        name: QualifiedName,
        rows: pa.Table,
        comments: Mapping[str, str],
        properties: Mapping[str, str],
        confirm: Callable[[], None],
    ) -> Outcome | None:
        from dbt.adapters.iceberg_stream.catalog.storage import StorageError
        from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
        from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

        catalog, table = self.catalogs.split(name)
        try:
            # Whatever another writer does to the table meanwhile, the statement replaces it.
            for attempt in Retrying(
                retry=retry_if_exception_type(TableChanged),
                stop=stop_after_attempt(ATTEMPTS),
                wait=wait_random_exponential(multiplier=0.1, max=2),
                reraise=True,
            ):
                with attempt:
                    if not self._may_replace(name, rows.column_names):
                        return None
                    ingested = ingest(
                        catalog,
                        table,
                        rows.to_reader(),
                        Mode.REPLACE,
                        origin="ctas",
                        properties=self._properties_of_spark(),
                        # Those of the columns that the query selects, as Spark's new table has.
                        comments=comments,
                        snapshot_properties=properties,
                        confirm=confirm,
                    )
        except (ColumnError, StorageError) as error:
            if isinstance(error, StorageError):
                # Spark may have what PyArrow lacks for this storage.
                self.reach.exclude(catalog.name)
            logger.debug(f"Spark writes {'.'.join(name)}: {error}")
            return None
        except CatalogError as error:
            raise StatementError(str(error)) from error
        return ingested.outcome

    def _properties_of_spark(self) -> dict[str, str]:
        """Return the properties of each table that Spark creates."""
        properties = {"write.parquet.compression-codec": "zstd"}
        if self.reach.is_remote:
            return properties  # the owner is the cluster's user, who has created the table
        try:
            return properties | {"owner": os.environ.get("SPARK_USER") or getpass.getuser()}
        except (KeyError, OSError):
            return properties  # a container may run as a user without a name


def writes_as_spark(settings: Mapping[str, Any]) -> bool:
    """Return whether this process writes tables as Spark does with settings.

    Args:
        settings: of the Spark session.
    """
    return not any(name.startswith(WRITE_SETTINGS) for name in settings)


def _rows(metadata: Metadata) -> float:
    return _total(metadata, "total-records")


def _total(metadata: Metadata, key: str) -> float:
    """Return a number of the current snapshot's summary; infinite if it is missing there."""
    snapshot = current_snapshot(metadata)
    return float(snapshot.properties.get(key, "inf")) if snapshot else 0


def _comment(field: DataType.StructField) -> str | None:
    comment = json.loads(field.metadata or "{}").get("comment")
    return None if comment is None else str(comment)


def _unwritten_column(schema: DataType.Struct) -> str | None:
    """Return the first type of a schema's columns that only Spark writes; None for none."""
    return next(filter(None, (_unwritten_type(field.data_type) for field in schema.fields)), None)


def _unwritten_type(data_type: DataType) -> str | None:
    """Return the first type within a type that only Spark writes; None for none."""
    from dbt.adapters.iceberg_stream.engines.column_types import nested_types, sql_type

    for nested in nested_types(data_type):
        if nested.HasField("struct"):
            if any(_comment(field) is not None for field in nested.struct.fields):
                return "a field with a comment"
        elif not (nested.HasField("array") or nested.HasField("map")):
            name = sql_type(nested)
            if name.split("(")[0] not in WRITTEN_TYPES:
                return name
    return None


# Spark's types, by their name without parameters, that Iceberg has, and Arrow exactly alike.
WRITTEN_TYPES = {
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal"),
    *("string", "char", "varchar", "binary", "date", "timestamp", "timestamp_ntz"),
}
