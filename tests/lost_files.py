"""What every test of a table's life ends with: no file is lost that somebody needs.

No file that any metadata references is missing, and no file that was there before, and is not
ours, is gone or changed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from dbt.adapters.iceberg_stream.builds.staged import PUBLISHED_METADATA
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.clone_tags import ORIGIN_LOCATION
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.references import own_references

# They tell tables apart, and nobody reads what they name.
NOT_READ = (PUBLISHED_METADATA, ORIGIN_LOCATION)
# Beside tables and their folders, and where a path would lead that is cut or decoded.
PLACES = ("notes.txt", "s/notes.txt", "s/t-old/data/a.parquet", "s/t#1", "s/t%2Fx")


def missing_files(table: LoadedTable) -> list[str]:
    """The files that a table's metadata reference, and that do not exist."""
    properties = table.metadata.get("properties") or {}
    read = {name: value for name, value in properties.items() if name not in NOT_READ}
    table = replace(table, metadata={**table.metadata, "properties": read})
    locations = dict.fromkeys(own_references(table))
    return [location for location in locations if not table.io.new_input(location).exists()]


def assert_nothing_lost(lake: IcebergCatalog, namespaces: Collection[str] | None = None) -> None:
    """All files of all tables exist, and all views can be read.

    Args:
        lake: the catalog.
        namespaces: whose tables; all by default.
    """
    for name, kind in lake.all_relations():
        if namespaces is not None and name[0] not in namespaces:
            continue
        table = lake.load(name)
        if table is not None:
            missing = missing_files(table)
            assert not missing, f"{'.'.join(name)} has lost {missing}"
        else:
            assert kind == "view" and lake.metadata(name) is not None


@dataclass(frozen=True)
class ForeignFiles:
    """Files in a warehouse that are not ours."""

    contents: dict[Path, str]

    @classmethod
    def create(cls, warehouse: Path) -> ForeignFiles:
        """Write some."""
        contents = {warehouse / place: f"mine: {place}" for place in PLACES}
        for path, text in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return cls(contents)

    def assert_unchanged(self) -> None:
        """All are there, as they were."""
        now = {path: path.read_text() for path in self.contents if path.exists()}
        assert now == self.contents, f"{self.contents} became {now}"
