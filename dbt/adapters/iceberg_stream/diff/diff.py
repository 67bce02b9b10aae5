"""Compares two versions of a table, or two tables: first metadata alone, then the rows that differ.

A comparison of a build is this, table by table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.diff.difference import (
    ChangedRow,
    Row,
    RowDifference,
    TableDifference,
)
from dbt.adapters.iceberg_stream.diff.errors import DiffError
from dbt.adapters.iceberg_stream.diff.files import FileDifference, FileRows, compare_files
from dbt.adapters.iceberg_stream.diff.matching import (
    NotUnique,
    Rows,
    RowSet,
    differences,
    match_rows,
)
from dbt.adapters.iceberg_stream.diff.partitions import MEMORY, Partitions
from dbt.adapters.iceberg_stream.diff.reader import RowReader
from dbt.adapters.iceberg_stream.diff.schemas import Columns, compared_columns, schema_changes
from dbt.adapters.iceberg_stream.diff.version import TableVersion, find_versions
from dbt.adapters.iceberg_stream.engines.python_values import python_values
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError

SAMPLES = 5


def diff(
    catalog: IcebergCatalog,
    name: Name,
    before: str | None = None,
    after: str | None = None,
    key: Sequence[str] | None = None,
    samples: int = SAMPLES,
) -> TableDifference:
    """Compare two versions of a table, or two tables.

    Args:
        catalog: the profile's catalog; see `open_catalog`.
        name: namespace and identifier of the table.
        before: the older version, as for `find_versions`; by default the snapshot before `after`.
        after: the newer version, likewise; by default the current one.
        key: columns that identify a row, as for `compare_rows`.
        samples: added, removed and changed rows to return, of each.

    Raises:
        DiffError: there is no such table or version, or they cannot be compared.
        OSError: the storage refuses a file.
    """
    versions = find_versions(catalog, name, before, after)
    return compare_rows(compare_metadata(*versions), key, samples)


def compare_metadata(before: TableVersion, after: TableVersion) -> TableDifference:
    """Compare schemas and files; reads no data file.

    Args:
        before: the older version.
        after: the newer version.

    Returns:
        The difference without rows.

    Raises:
        OSError: the storage refuses a file.
    """
    return TableDifference(
        before, after, schema_changes(before, after), compare_files(before, after)
    )


def compare_rows(
    difference: TableDifference,
    key: Sequence[str] | None = None,
    samples: int = SAMPLES,
    memory: int = MEMORY,
) -> TableDifference:
    """Compare the rows of two versions, reading only data files that differ.

    Args:
        difference: what `compare_metadata` returned.
        key: columns that identify a row; empty to compare whole rows. By default the identifier
            columns of the newer version, or else whole rows.
        samples: added, removed and changed rows to return, of each.
        memory: bytes of rows that stay in memory; more of them go to the local disk.

    Returns:
        The difference with rows.

    Raises:
        DiffError: the rows cannot be compared, or the key is not one.
        OSError: the storage refuses a file.
    """
    before, after = difference.before, difference.after
    columns = compared_columns(before, after)
    keys = _key_columns(before, after, columns, key)
    comparison = _Comparison(before, after, columns, keys, samples)
    return replace(difference, rows=comparison.run(difference.files, memory))


def _key_columns(
    before: TableVersion, after: TableVersion, columns: Columns, key: Sequence[str] | None
) -> list[int]:
    """Return the positions of the key columns; none to compare whole rows."""
    if key is None:
        identifiers = after.schema.identifier_field_ids
        ids = [field.field_id for field in columns.after.fields]
        if not set(identifiers) <= set(ids):
            return []
        key = [columns.names[ids.index(number)] for number in identifiers]
    return [_key_column(before, after, columns, name) for name in dict.fromkeys(key)]


def _key_column(before: TableVersion, after: TableVersion, columns: Columns, name: str) -> int:
    names = columns.names
    same = [n for n in names if n == name] or [n for n in names if n.lower() == name.lower()]
    if not same:
        if name in columns.excluded:
            raise DiffError(
                f"The key column `{name}` has types that cannot be compared. Choose another key "
                "with `--key`, or compare whole rows with `--whole-rows`."
            )
        raise DiffError(
            f"{after.label} has no key column `{name}`. It has {_listed(names)}. Choose the key "
            "with `--key`."
        )
    place = names.index(same[0])
    if before.snapshot is not None and not _has(before, columns.before.fields[place].field_id):
        raise DiffError(
            f"{before.label} has no key column `{name}`, so its rows cannot be matched. Choose "
            "another key with `--key`, or compare whole rows with `--whole-rows`."
        )
    return place


def _has(version: TableVersion, field_id: int) -> bool:
    return any(field.field_id == field_id for field in version.schema.fields)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


class _Comparison:
    """Compares rows, and gathers the result."""

    def __init__(
        self,
        before: TableVersion,
        after: TableVersion,
        columns: Columns,
        keys: Sequence[int],
        samples: int,
    ) -> None:
        self._versions = before, after
        self._columns = columns
        self._has_key = bool(keys)
        self._keys = list(keys) or list(range(len(columns.names)))
        self._values = [n for n in range(len(columns.names)) if n not in self._keys]
        self._samples = samples
        self._counts = np.zeros(len(columns.names), np.int64)
        try:
            self._types = [field.type for field in file_schema(columns.after)]
        except ColumnError as error:
            raise DiffError(f"The rows cannot be compared: {error}") from error
        key = [columns.names[n] for n in keys]
        self._result = RowDifference(key, excluded=columns.excluded)

    def run(self, files: FileDifference, memory: int) -> RowDifference:
        """Return the rows that differ."""
        sides = files.rows()
        result = self._result
        result.files_read = sum(map(len, sides))
        result.rows_read = sum(len(item.rows) for side in sides for item in side)
        with Partitions(self._storage_schema(), self._keys, result.rows_read, memory) as rows:
            self._read(rows, *sides)
            for before, after in rows.row_sets():
                self._compare(before, after)
        names = self._columns.names
        result.columns = {names[n]: int(c) for n, c in enumerate(self._counts) if c}
        return result

    def _read(
        self, rows: Partitions, before: Sequence[FileRows], after: Sequence[FileRows]
    ) -> None:
        schemas = self._columns.before, self._columns.after
        for version, schema, side in zip(self._versions, schemas, (before, after), strict=True):
            reader = RowReader(version, schema)
            for table in reader.read(side):
                rows.add(table, side is before)
            self._result.bytes_read += reader.bytes

    def _storage_schema(self) -> pa.Schema:
        return pa.schema(
            pa.field(str(n), kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind)
            for n, kind in enumerate(self._types)
        )

    def _compare(self, before: RowSet, after: RowSet) -> None:
        result = self._result
        try:
            matches = match_rows(before, after, self._keys, unique=self._has_key)
        except NotUnique as error:
            raise self._not_unique(error, before if error.is_before else after) from error
        result.removed += len(matches.removed)
        result.added += len(matches.added)
        self._sample(result.removed_rows, before, matches.removed)
        self._sample(result.added_rows, after, matches.added)
        if self._has_key:
            self._compare_values(before, after, matches.before, matches.after)

    def _compare_values(self, before: RowSet, after: RowSet, left: Rows, right: Rows) -> None:
        changed = np.zeros(len(left), np.bool_)
        masks = differences(before, after, left, right, self._values)
        for column, mask in zip(self._values, masks, strict=True):
            self._counts[column] += np.count_nonzero(mask)
            changed |= mask
        rows = np.flatnonzero(changed)
        self._result.changed += len(rows)
        some = rows[: self._samples - len(self._result.changed_rows)]
        names = self._columns.names
        old, new = self._rows(before, left[some]), self._rows(after, right[some])
        for row, one, other in zip(some, old, new, strict=True):
            differing = [names[c] for c, m in zip(self._values, masks, strict=True) if m[row]]
            self._result.changed_rows.append(ChangedRow(one, other, differing))

    def _sample(self, samples: list[Row], rows: RowSet, positions: Rows) -> None:
        samples += self._rows(rows, positions[: self._samples - len(samples)])

    def _rows(self, rows: RowSet, positions: Rows) -> list[Row]:
        indices = pa.array(positions)
        values = [
            python_values(self._with_type(column.take(indices), kind))
            for column, kind in zip(rows.columns, self._types, strict=True)
        ]
        names = self._columns.names
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]

    @staticmethod
    def _with_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
        if isinstance(kind, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(kind, values)
        return values

    def _not_unique(self, error: NotUnique, rows: RowSet) -> DiffError:
        row = self._rows(rows, np.array([error.row]))[0]
        names = self._result.key
        key = ", ".join(f"{name}={row[name]!r}" for name in names)
        version = self._versions[0 if error.is_before else 1]
        return DiffError(
            f"The key {_listed(names)} is not unique in {version.label}: {error.count} rows have "
            f"{key}. Choose other columns with `--key`, or compare whole rows with `--whole-rows`."
        )
