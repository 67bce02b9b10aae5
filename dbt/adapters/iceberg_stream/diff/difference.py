"""The result of a comparison, and its JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dbt.adapters.iceberg_stream.diff.files import FileDifference
from dbt.adapters.iceberg_stream.diff.schemas import SchemaChange
from dbt.adapters.iceberg_stream.diff.version import TableVersion

Row = Mapping[str, Any]


@dataclass(frozen=True)
class ChangedRow:
    """A row before and after a change.

    Attributes:
        before: its values before, by column.
        after: its values after.
        columns: the columns that differ.
    """

    before: Row
    after: Row
    columns: Sequence[str]


@dataclass
class RowDifference:
    """The rows that differ between two versions.

    Attributes:
        key: columns that identify a row; empty if whole rows were compared.
        added: rows that only the newer version has.
        removed: rows that only the older version has.
        changed: rows of both versions with other values; 0 if whole rows were compared.
        columns: changed rows by column, only columns in which some differ.
        excluded: columns of both versions whose types cannot be compared.
        added_rows: some added rows.
        removed_rows: some removed rows.
        changed_rows: some changed rows.
        files_read: data files that were read, once for each version.
        rows_read: rows that were read.
        bytes_read: compressed size of what was read of data files.
    """

    key: Sequence[str] = ()
    added: int = 0
    removed: int = 0
    changed: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    excluded: Sequence[str] = ()
    added_rows: list[Row] = field(default_factory=list)
    removed_rows: list[Row] = field(default_factory=list)
    changed_rows: list[ChangedRow] = field(default_factory=list)
    files_read: int = 0
    rows_read: int = 0
    bytes_read: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the counts and sample rows as JSON."""
        samples = {
            "added": [_json_row(row) for row in self.added_rows],
            "removed": [_json_row(row) for row in self.removed_rows],
            "changed": [
                {
                    "before": _json_row(row.before),
                    "after": _json_row(row.after),
                    "columns": list(row.columns),
                }
                for row in self.changed_rows
            ],
        }
        return {
            "key": list(self.key),
            "added": self.added,
            "removed": self.removed,
            "changed": self.changed,
            "changed_by_column": self.columns,
            "columns_not_compared": list(self.excluded),
            "samples": samples,
            "read": {"files": self.files_read, "rows": self.rows_read, "bytes": self.bytes_read},
        }


@dataclass(frozen=True)
class TableDifference:
    """The difference of two versions of a table, or of two tables.

    Attributes:
        before: the older version.
        after: the newer version.
        schema: changes of columns.
        files: what manifests say.
        rows: the rows that differ; None if only metadata were compared.
    """

    before: TableVersion
    after: TableVersion
    schema: Sequence[SchemaChange]
    files: FileDifference
    rows: RowDifference | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the difference as JSON."""
        files = self.files
        return {
            "from": _version(self.before, files.rows_before),
            "to": _version(self.after, files.rows_after),
            "schema": [asdict(change) for change in self.schema],
            "files": {"added": asdict(files.added), "removed": asdict(files.removed)},
            "rows": None if self.rows is None else self.rows.as_json(),
        }


def _version(version: TableVersion, rows: int | None) -> dict[str, Any]:
    return {
        "table": version.name,
        "snapshot_id": version.snapshot_id,
        "ref": version.ref or None,
        "committed_at": None if version.time is None else version.time.isoformat(),
        "rows": rows,
    }


def _json_row(row: Row) -> dict[str, Any]:
    return {name: _json(value) for name, value in row.items()}


def _json(value: Any) -> Any:
    """Return a value as JSON has it: numbers that it lacks, and other types, as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
