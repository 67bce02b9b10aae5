"""What a statement reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NameParts = tuple[str, ...]
# A snapshot's id, the name of a tag or branch, or None for the current version.
AsOf = int | str | None
CURRENT: frozenset[AsOf] = frozenset([None])
# Iceberg's tables of a table's metadata (documentation of Spark queries, "Inspecting tables").
METADATA_TABLES = {
    *("history", "metadata_log_entries", "snapshots", "entries", "files", "manifests"),
    *("partitions", "position_deletes", "all_data_files", "all_delete_files", "all_entries"),
    *("all_manifests", "all_files", "refs", "data_files", "delete_files"),
}


@dataclass(frozen=True)
class Reads:
    """Relations that a statement reads.

    Attributes:
        relations: name parts as in the statement; the target only if the statement reads it.
        versions: in which versions it reads those that it does not only read in the current one.
    """

    relations: frozenset[NameParts]
    versions: Mapping[NameParts, frozenset[AsOf]] = field(default_factory=dict)

    def of_tables(self) -> Reads:
        """Return what is read, with the table itself in place of a table of its metadata."""
        tables = {parts: _without_metadata_table(parts) for parts in self.relations}
        read_as: dict[NameParts, frozenset[AsOf]] = {}
        for parts, table in tables.items():
            read_as[table] = read_as.get(table, frozenset()) | self.versions.get(parts, CURRENT)
        return Reads(frozenset(read_as), read_as)


def _without_metadata_table(parts: NameParts) -> NameParts:
    return parts[:-1] if len(parts) > 2 and parts[-1].lower() in METADATA_TABLES else parts
