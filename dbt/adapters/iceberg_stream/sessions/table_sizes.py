"""Which tables are small, and which queries read few rows, by the summaries of snapshots."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, current_snapshot
from dbt.adapters.iceberg_stream.sql.queries import multiplies_rows, reads
from dbt.adapters.iceberg_stream.tables.commit.outcome import read_outcome
from dbt.adapters.iceberg_stream.tables.commit.read_set import ReadSet, Views, capture_read_set

# Bytes of Arrow data for each row of `small_table_rows`: wide rows are better written by Spark.
BYTES_PER_ROW = 200
# A merge without staging may have so many times `small_table_rows`: this process gets the rows of
# larger ones, too, after the engine has staged them.
MERGED = 5
# The most rows of all inputs of a query that Spark interprets. With more, generated code is faster
# once it is compiled, and a project's next run finds it compiled.
INTERPRETED_ROWS = 5_000


@dataclass(frozen=True)
class TableSizes:
    """Tells how large tables are, and how much queries read. Thread-safe.

    Attributes:
        catalogs: the catalogs of the tables.
        most_rows: the most rows of a small table.
        remembers: whether to load what queries read only once in a command. If a table has grown
            since then, its queries are slower, and return the same rows.
    """

    catalogs: Catalogs
    most_rows: int
    remembers: bool = False
    _loaded: dict[QualifiedName, Metadata | None] = field(default_factory=dict)

    def is_small(self, metadata: Metadata) -> bool:
        """Return whether a table has few rows and bytes; a view never has.

        Args:
            metadata: of the table.
        """
        if "versions" in metadata:
            return False
        size = _total(metadata, "total-files-size")
        return _rows(metadata) <= self.most_rows and size <= self.most_rows * BYTES_PER_ROW

    def had_few_changes(self, metadata: Metadata | None, most_rows: int) -> bool:
        """Return whether the last write to a table changed few rows, so that the next one may, too.

        Args:
            metadata: of the table; None if it does not exist.
            most_rows: the most rows that are few.
        """
        if metadata is None or "versions" in metadata:
            return False
        snapshot = current_snapshot(metadata)
        changed = read_outcome(snapshot).rows_affected if snapshot else 0
        return min(changed, _rows(metadata)) <= most_rows

    def most_merged_rows(self, metadata: Metadata | None) -> int:
        """Return how many rows a merge into a table may have, to be made without staging them.

        The engine keeps them all in memory, so there are fewer if the table's rows are large.

        Args:
            metadata: of the table; None if it does not exist.
        """
        rows = 0 if metadata is None else _rows(metadata)
        size = 0 if metadata is None else _total(metadata, "total-files-size")
        if math.inf in (rows, size):
            return self.most_rows
        of_row = max(BYTES_PER_ROW, size / max(rows, 1))
        return int(MERGED * self.most_rows * BYTES_PER_ROW / of_row)

    def computes_few_rows(self, query: str, views: Views) -> bool:
        """Return whether a query reads few rows, and does not make many of them.

        Args:
            query: the query.
            views: what the temporary views of the session read, as for `capture_read_set`.
        """
        try:
            read_set = self.reads_few_rows(query, views, min(self.most_rows, INTERPRETED_ROWS))
        except CatalogError:
            return False
        if read_set is None:
            return False
        return not any(map(multiplies_rows, (query, *read_set.definitions)))

    def reads_few_rows(self, query: str, views: Views, most_rows: int) -> ReadSet | None:
        """Return what a query reads, if all its tables together have few rows; None if not.

        Args:
            query: the query.
            views: what the temporary views of the session read, as for `capture_read_set`.
            most_rows: the most rows of all tables.

        Raises:
            CatalogError: the catalog does not answer, or refuses.
        """
        relations: dict[QualifiedName, Metadata] = {}
        read_set = capture_read_set(self.catalogs, reads(query), views, relations, self._load)
        if not read_set.is_complete:
            return None
        tables = [metadata for metadata in relations.values() if "versions" not in metadata]
        is_small = all(map(self.is_small, tables)) and sum(map(_rows, tables)) <= most_rows
        return read_set if is_small else None

    def _load(self, name: QualifiedName) -> Metadata | None:
        if not self.remembers:
            return self.catalogs.metadata(name)
        if name not in self._loaded:
            self._loaded[name] = self.catalogs.metadata(name)
        return self._loaded[name]


def _rows(metadata: Metadata) -> float:
    return _total(metadata, "total-records")


def _total(metadata: Metadata, key: str) -> float:
    """Return a number of the current snapshot's summary; infinite if it is missing there."""
    snapshot = current_snapshot(metadata)
    return float(snapshot.properties.get(key, "inf")) if snapshot else 0
