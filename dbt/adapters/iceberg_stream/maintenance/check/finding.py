"""Findings of a check: each kind of damage, its effect on readers, and its cure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Kind:
    """A kind of damage.

    Attributes:
        severity: `error` if rows are wrong or cannot be read, `warning` if history, statistics or
            speed suffer, `note` if the damage is harmless.
        effect: what readers notice.
        cure: what to do.
    """

    severity: Severity
    effect: str
    cure: str

    @property
    def refused(self) -> bool:
        """Return whether Iceberg's own parser refuses the metadata, so other checks are useless."""
        return self.effect == _REFUSED


@dataclass(frozen=True)
class Finding:
    """One problem of a table.

    Attributes:
        code: key of KINDS.
        where: the file, snapshot or property.
        problem: what is wrong.
    """

    code: str
    where: str
    problem: str

    @property
    def kind(self) -> Kind:
        """The kind of damage."""
        return KINDS[self.code]

    @property
    def severity(self) -> Severity:
        """The kind's severity."""
        return self.kind.severity

    def as_json(self) -> dict[str, str]:
        """Return the finding as JSON."""
        return {
            "code": self.code,
            "severity": self.severity,
            "where": self.where,
            "problem": self.problem,
            "effect": self.kind.effect,
            "cure": self.kind.cure,
        }


_ROLL_BACK = "Roll back to a snapshot that does not use it, or rebuild the table."
_REWRITE = "Rewrite the file with `rewrite_data_files` (option `rewrite-all`)."
_REWRITE_MANIFESTS = "Run `rewrite_manifests`, or rebuild the table."
_OLDER_METADATA = (
    "Register the table again from an older metadata file of its `metadata` folder, then run the "
    "later writes again."
)
_REFUSED = "Iceberg's own parser refuses the metadata: no engine can read the table."
_REBUILD = "Rebuild the table: `dbt run --full-refresh`, or restore it from a backup."

KINDS: dict[str, Kind] = {
    # Metadata.
    "metadata-refused": Kind("error", _REFUSED, _OLDER_METADATA),
    "snapshot-sequence-number": Kind("error", _REFUSED, _OLDER_METADATA),
    "current-snapshot-missing": Kind("error", _REFUSED, _OLDER_METADATA),
    "ref-snapshot-missing": Kind("error", _REFUSED, _OLDER_METADATA),
    "current-schema-missing": Kind("error", _REFUSED, _OLDER_METADATA),
    "default-missing": Kind(
        "error",
        "Writers do not know how the table is partitioned or sorted, and some readers fail.",
        _OLDER_METADATA,
    ),
    "field-ids": Kind(
        "error",
        "Two columns share an id: a new column may show the values of another one.",
        _OLDER_METADATA,
    ),
    "snapshot-schema-missing": Kind(
        "warning",
        "Time travel to the snapshot fails, or shows the current columns.",
        "Expire the snapshot with `expire_snapshots`.",
    ),
    "snapshot-order": Kind(
        "error",
        "Deletes may miss rows, because a later snapshot has a lower sequence number.",
        _REBUILD,
    ),
    "metadata-log": Kind(
        "note",
        "Older metadata files in the log are missing: they cannot be registered again.",
        "Nothing to do.",
    ),
    # Schemas and defaults.
    "reserved-id": Kind(
        "error", "Engines take the column for a metadata column such as `_pos`.", _REBUILD
    ),
    "type-version": Kind(
        "error",
        "Engines that know only this format version refuse the table.",
        "Upgrade the table: set the property `format-version` to 3.",
    ),
    "unknown-required": Kind(
        "error",
        "The column has no values, but may not be null: engines refuse to read it.",
        "Make the column optional, or drop it.",
    ),
    "default-version": Kind(
        "error",
        "Engines that know only this format version ignore the default: rows have nulls instead.",
        "Upgrade the table: set the property `format-version` to 3.",
    ),
    "default-value": Kind(
        "error",
        "Engines refuse the table, or older rows have another value in each engine.",
        _OLDER_METADATA,
    ),
    "name-mapping": Kind(
        "error",
        "Reads of files without field ids fail, or return null for their columns.",
        "Set the table property `schema.name-mapping.default` to a right mapping, or unset it.",
    ),
    # Partition specs and sort orders.
    "partition-fields": Kind(
        "error",
        "Engines take one partition field for the other: filters miss rows, or writes fail.",
        _OLDER_METADATA,
    ),
    "transform-source": Kind(
        "error",
        "Engines refuse to write to the table, and some to read it.",
        "Drop the field with `alter table … drop partition field` or `write unordered`, or use "
        "older metadata.",
    ),
    "transform-unknown": Kind(
        "error",
        "Engines must not write to the table, and cannot skip files by this field.",
        "Replace the field by one with a known transform.",
    ),
    "sort-order-zero": Kind(
        "error",
        "Engines refuse the table, or take sorted files for unsorted ones.",
        _OLDER_METADATA,
    ),
    # Branches, tags and history.
    "main-branch": Kind(
        "error", "Writes to the table fail, because a tag cannot be written to.", _OLDER_METADATA
    ),
    "snapshot-log": Kind(
        "warning",
        "Time travel to a timestamp fails, or shows other rows than the table had then.",
        "Use a snapshot id or a tag instead; `expire_snapshots` removes older entries.",
    ),
    "snapshot-operation": Kind(
        "warning",
        "Incremental reads skip the snapshot or refuse it, because they do not know what it did.",
        "Expire the snapshot with `expire_snapshots`.",
    ),
    # Files that cannot be read or found.
    "metadata-lost": Kind(
        "error",
        "No engine can read the table.",
        "Restore the file, or register the table again from an older metadata file of its "
        "`metadata` folder.",
    ),
    # Manifests.
    "missing-file": Kind("error", "Reads that need the file fail.", _ROLL_BACK),
    "file-size": Kind("error", "Engines that trust the size read a truncated file.", _ROLL_BACK),
    "unreadable-file": Kind("error", "Reads that need the file fail.", _ROLL_BACK),
    "manifest-spec": Kind("error", "Engines cannot read the manifest.", _OLDER_METADATA),
    "manifest-content": Kind(
        "error", "Engines take deletes for rows, or rows for deletes.", _ROLL_BACK
    ),
    "manifest-counts": Kind(
        "error",
        "Engines use these counts to skip manifests and to count rows: rows are missed.",
        _REWRITE_MANIFESTS,
    ),
    "sequence-number": Kind(
        "error", "Deletes of later commits miss the rows, or delete rows that are newer.", _REBUILD
    ),
    "partition-summary": Kind(
        "error",
        "Engines skip the manifest for filters that its files match: rows are missed.",
        _REWRITE_MANIFESTS,
    ),
    "file-twice": Kind("error", "The rows of the file are read twice.", _ROLL_BACK),
    "summary-totals": Kind(
        "warning",
        "Row and file counts in docs, statistics and query plans are wrong.",
        "Totals are right again after a write that replaces the whole table.",
    ),
    # Deletes.
    "vector-twice": Kind(
        "error",
        "Engines refuse the table or use one of the vectors: deleted rows reappear.",
        _REBUILD,
    ),
    "vector-version": Kind(
        "error",
        "Engines refuse the table, or ignore the vector: deleted rows reappear.",
        "Upgrade the table: set the property `format-version` to 3.",
    ),
    "vector-fields": Kind(
        "error",
        "Engines cannot find the vector: reads fail, or deleted rows reappear.",
        _REBUILD,
    ),
    "delete-partition": Kind(
        "error",
        "Engines apply deletes only within a partition: deleted rows reappear.",
        _REBUILD,
    ),
    "hidden-deletes": Kind(
        "error",
        "Readers of format version 3 ignore position deletes beside a deletion vector: deleted "
        "rows reappear.",
        "Run `rewrite_position_delete_files` in an Iceberg version that still applies them, or "
        "rebuild the table.",
    ),
    "position-past-end": Kind(
        "error", "Some engines fail; the rows that should be deleted stay in the table.", _REBUILD
    ),
    "vector-count": Kind(
        "error", "Row counts from metadata are wrong, and engines may refuse the vector.", _REBUILD
    ),
    "unsorted-deletes": Kind(
        "warning",
        "Readers that merge position deletes in order miss some of them.",
        "Run `rewrite_position_delete_files`.",
    ),
    "delete-location": Kind(
        "error",
        "Engines compare locations as texts: deleted rows reappear.",
        _REBUILD,
    ),
    "vector-blob": Kind(
        "error",
        "Engines apply the deletes of another file: its rows reappear, and others are lost.",
        _REBUILD,
    ),
    "dangling-delete": Kind(
        "note",
        "The deletes apply to no file; every scan still has to read them during planning.",
        "Run `rewrite_position_delete_files`, or `rewrite_data_files` with "
        "`remove-dangling-deletes`.",
    ),
    "delete-metrics": Kind(
        "error",
        "Engines skip the deletes for filters on columns that are not of the key: replaced rows "
        "reappear.",
        "Run `rewrite_data_files` with the option `delete-file-threshold` at 1.",
    ),
    "equality-column": Kind(
        "error", "Engines cannot apply the equality deletes: reads fail or keep the rows.", _REBUILD
    ),
    # Row lineage.
    "row-ids": Kind(
        "error", "Two rows share a `_row_id`: change feeds and audits mix them up.", _REBUILD
    ),
    "row-id-twice": Kind(
        "error", "Two rows share a `_row_id`: change feeds and audits mix them up.", _REBUILD
    ),
    # Contents of files.
    "row-count": Kind("error", "`count(*)` from metadata is wrong.", _REWRITE),
    "bounds": Kind(
        "error",
        "Engines skip the file although some of its rows match the filter: rows are missed.",
        _REWRITE,
    ),
    "value-counts": Kind(
        "error",
        "Engines skip the file for `is null`, `is not null` and NaN filters that its rows match.",
        _REWRITE,
    ),
    "partition-value": Kind(
        "error",
        "Rows are in the wrong partition: filters and deletes miss them.",
        _REWRITE,
    ),
    "null-in-required": Kind(
        "error",
        "Engines that rely on the column having no null fail or return arbitrary values.",
        "Make the column optional (`alter table … alter column … drop not null`), or fix the rows.",
    ),
    "column-type": Kind("error", "Reads of the column fail or return wrong values.", _REBUILD),
    "field-ids-missing": Kind(
        "error",
        "Readers find columns by id, so they return null for all of them.",
        "Set the table property `schema.name-mapping.default`, or rewrite the file.",
    ),
    "field-id": Kind(
        "error",
        "Engines find columns by id: they return null for the column, or values of another one.",
        _REBUILD,
    ),
    "required-absent": Kind(
        "error",
        "Engines fail, because the column may not be null and the file has no values for it.",
        "Make the column optional (`alter table … alter column … drop not null`), or rebuild the "
        "table.",
    ),
    "sort-order": Kind(
        "warning", "Engines that rely on the sort order return rows in the wrong order.", _REWRITE
    ),
    "split-offsets": Kind("warning", "Engines distribute the file unevenly over tasks.", _REWRITE),
    # Streams.
    "stream-progress": Kind(
        "error",
        "The stream refuses to continue, or would lose or repeat changes.",
        "Run `iceberg-stream resume` on the table, or the model with `--full-refresh`.",
    ),
    # The limits of this check.
    "not-checked": Kind(
        "note", "A part of the table was not checked.", "Check it with the engine that wrote it."
    ),
}
