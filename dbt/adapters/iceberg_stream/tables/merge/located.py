"""Rows that Spark has located for a merge, because SQL decides what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from secrets import token_hex

import pyarrow as pa

from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.files.casting import conform
from dbt.adapters.iceberg_stream.tables.files.reader import NO_ROWS
from dbt.adapters.iceberg_stream.tables.merge.rows import Source

# Columns of the table and its source may have any other name.
_SUFFIX = token_hex(8)
FILE, POS, UPDATES = (f"__dbt_{name}_{_SUFFIX}" for name in ("file", "pos", "updates"))
# In the source: whether a row may be inserted, and whether its match may be updated.
INSERTS, MAY_UPDATE = (f"__dbt_{name}_{_SUFFIX}" for name in ("inserts", "may_update"))
NO_FILES = pa.schema([(FILE, pa.string()), (POS, pa.int64())]).empty_table()


@dataclass(frozen=True)
class FileRows:
    """Rows of one data file.

    Attributes:
        in_file, in_source: pairs of positions of the rows that may be updated.
        gone: positions of rows to delete.
    """

    in_file: pa.Int64Array = field(default_factory=lambda: NO_ROWS)
    in_source: pa.Int64Array = field(default_factory=lambda: NO_ROWS)
    gone: pa.Int64Array = field(default_factory=lambda: NO_ROWS)


@dataclass(frozen=True)
class Located:
    """The rows of a snapshot that a merge changes.

    Attributes:
        source: the merge's source.
        matches: FILE and POS of the table's rows with a match, the match's keys, and UPDATES,
            whether it may be updated; None for an empty table.
        deleted: FILE and POS of the rows to delete.
    """

    source: Source
    matches: pa.Table | None = None
    deleted: pa.Table = field(default_factory=lambda: NO_FILES)

    @cached_property
    def _pairs(self) -> pa.Table:
        """FILE, POS, position in the source, and UPDATES of the matches."""
        if self.matches is None:
            return NO_FILES.append_column("at", NO_ROWS).append_column(
                UPDATES, NO_ROWS.cast("bool")
            )
        schema = pa.schema([self.source.rows.schema.field(key) for key in self.source.keys])
        keys = self.matches.select(self.source.keys).to_batches()
        found = self.source.match(pa.Table.from_batches([conform(k, schema) for k in keys], schema))
        rows = self.matches.select([FILE, POS, UPDATES]).take(found.in_file)
        return rows.append_column("at", found.in_source)

    @property
    def matched(self) -> pa.Int64Array:
        """Positions of the source's rows with a match."""
        return self._pairs["at"].combine_chunks()

    @cached_property
    def files(self) -> Mapping[str, FileRows]:
        """The rows of each data file, by its location."""
        pairs = self._pairs
        updates = _lists(pairs.filter(pairs[UPDATES]), [POS, "at"])
        deletes = _lists(self.deleted, [POS])
        return {
            file: FileRows(*updates.get(file, (NO_ROWS, NO_ROWS)), *deletes.get(file, (NO_ROWS,)))
            for file in {*updates, *deletes}
        }


# Locates the rows of a version of the table. Raises NotByRewriting if they cannot be located.
Locate = Callable[[LoadedTable, Source], Located]


def _lists(rows: pa.Table, columns: list[str]) -> dict[str, tuple[pa.Int64Array, ...]]:
    """Return the values of columns, by the file."""
    grouped = rows.group_by(FILE).aggregate([(name, "list") for name in columns])
    batches = grouped.to_batches()
    return {
        batch[FILE][n].as_py(): tuple(batch[f"{name}_list"][n].values for name in columns)
        for batch in batches
        for n in range(batch.num_rows)
    }
