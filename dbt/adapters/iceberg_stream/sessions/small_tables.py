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

from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from dbt.adapters.iceberg_stream.builds.names import without_build
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, TableChanged
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.sessions.storage_reach import StorageReach
from dbt.adapters.iceberg_stream.sessions.table_sizes import BYTES_PER_ROW, TableSizes
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.sql.statements import replacing_query
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome
from dbt.adapters.iceberg_stream.tables.commit.read_set import (
    Views,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.proto import DataType

    from dbt.adapters.iceberg_stream.engines.session import Session

logger = Logger()

# Attempts to replace a table that other writers create, drop or change.
ATTEMPTS = 5
# The module that writes tables, and how many tables of a command Spark writes before the module is
# imported: PyIceberg, and pandas with PyArrow's datasets, take half a second.
WRITER = "dbt.adapters.iceberg_stream.tables.ingest.ingest"
TABLES_OF_SPARK = 5
# Settings of Spark by which its writes differ from those of this process.
WRITE_SETTINGS = ("spark.wap.", "spark.sql.iceberg.", "spark.sql.storeAssignmentPolicy")


@dataclass(frozen=True)
class SmallTables:
    """Replaces those tables of a profile's catalogs that have few rows. Thread-safe.

    Attributes:
        catalogs: the catalogs.
        sizes: tells which tables are small.
        reach: the storage that this process writes to.
    """

    catalogs: Catalogs
    sizes: TableSizes
    reach: StorageReach
    # The numbers of the small tables of a command.
    _numbers: Iterator[int] = field(default_factory=itertools.count)

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
            metadata = self.catalogs.metadata(without_build(name), history=False)
            if not self.reach.includes(self.catalogs.split(name)[0].name, metadata):
                return None
            is_small = (
                self.sizes.is_small(metadata)
                if metadata is not None
                else self.sizes.reads_few_rows(query, views, self.sizes.most_rows) is not None
            )
        except CatalogError:
            return None  # Spark's statement fails, too, and says why
        if not is_small or not self.is_worth_importing():
            return None
        return None if _is_left_to_spark(name, (), metadata) else query

    def is_worth_importing(self) -> bool:
        """Return whether this process should write a small table, rather than Spark.

        For the first tables of a command, to import what writes them takes longer.
        """
        return WRITER in sys.modules or next(self._numbers) >= TABLES_OF_SPARK

    def fetch(
        self, session: Session, query: str, views: Views | None, most_rows: int
    ) -> tuple[pa.Table, DataType.Struct] | None:
        """Run a query, and return its rows and their schema; None if they are too many.

        Args:
            session: runs the query.
            query: the query.
            views: what the temporary views of the session read, as for `capture_read_set`; None if
                settings of the session must not be changed.
            most_rows: the most rows.

        Raises:
            StatementError: Spark does not run it.
        """
        interpreted = views is not None and self.sizes.computes_few_rows(query, views)
        return session.few_rows(query, most_rows, most_rows * BYTES_PER_ROW, interpreted)

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
        fetched = self.fetch(session, query, views, self.sizes.most_rows)
        if fetched is None:
            logger.debug(f"Spark writes {label}: it is too large")
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

        def check_base(metadata: Metadata | None) -> None:
            if _is_left_to_spark(name, rows.column_names, metadata):
                raise LeftToSpark

        try:
            # Whatever another writer does to the table meanwhile, the statement replaces it.
            for attempt in Retrying(
                retry=retry_if_exception_type(TableChanged),
                stop=stop_after_attempt(ATTEMPTS),
                wait=wait_random_exponential(multiplier=0.1, max=2),
                reraise=True,
            ):
                with attempt:
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
                        check_base=check_base,
                        confirm=confirm,
                    )
        except LeftToSpark:
            return None
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


class LeftToSpark(Exception):
    """Spark must write the table."""


def writes_as_spark(settings: Mapping[str, Any]) -> bool:
    """Return whether this process writes tables as Spark does with settings.

    Args:
        settings: of the Spark session.
    """
    return not any(name.startswith(WRITE_SETTINGS) for name in settings)


def _is_left_to_spark(
    name: QualifiedName, columns: Sequence[str], metadata: Metadata | None
) -> bool:
    """Return whether Spark must replace a table, because this process would not write the same."""
    from dbt.adapters.iceberg_stream.tables.ingest.replacement import why_spark_replaces

    if (reason := why_spark_replaces(columns, metadata)) is None:
        return False
    logger.debug(f"Spark writes {'.'.join(name)}: {reason}")
    return True


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
