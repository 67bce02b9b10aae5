"""Tables that are damaged on purpose: metadata, manifests and files changed in their place."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.tables.commit.manifest_writer import (
    ManifestWriter,
    write_manifest_list,
)
from dbt.adapters.iceberg_stream.tables.commit.manifests import read_manifest, read_manifest_list
from tests.integration.streams import NAME
from tests.integration.writers import open_catalog

DATA, DELETES = ManifestContent.DATA, ManifestContent.DELETES
# Positions of the fields in the records of a data file and of a manifest list.
FIELD = {f.name: number for number, f in enumerate(DATA_FILE_TYPE[3].fields)}
LISTED = {f.name: number for number, f in enumerate(MANIFEST_LIST_FILE_SCHEMAS[3].fields)}


def path_of(location: str) -> Path:
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def edit_metadata(lake: IcebergCatalog, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the table's metadata file in its place."""
    loaded = lake.load(NAME)
    assert loaded is not None
    file = path_of(loaded.location)
    metadata = json.loads(file.read_text())
    change(metadata)
    file.write_text(json.dumps(metadata))


def snapshot(lake: IcebergCatalog) -> dict[str, Any]:
    loaded = lake.load(NAME)
    assert loaded is not None
    current = loaded.metadata["current-snapshot-id"]
    return next(s for s in loaded.metadata["snapshots"] if s["snapshot-id"] == current)


def edit_list(lake: IcebergCatalog, change: Callable[[list[ManifestFile]], None]) -> None:
    """Change the manifest list of the current snapshot."""
    loaded = lake.load(NAME)
    assert loaded is not None
    current = snapshot(lake)
    manifests = read_manifest_list(loaded.io, current["manifest-list"])
    change(manifests)
    version = loaded.metadata["format-version"]
    write_manifest_list(loaded.io, current["manifest-list"], version, current, manifests)


def edit_entries(
    lake: IcebergCatalog, content: ManifestContent, change: Callable[[list[ManifestEntry]], None]
) -> None:
    """Change what the manifests of the current snapshot list; the list's counts follow."""
    loaded = lake.load(NAME)
    assert loaded is not None
    metadata, io = loaded.metadata, loaded.io

    def rewrite(manifests: list[ManifestFile]) -> None:
        for number, manifest in enumerate(manifests):
            if manifest.content != content:
                continue
            entries = read_manifest(io, manifest)
            change(entries)
            schema = Schema.model_validate(metadata["schemas"][-1])
            spec = next(
                s for s in metadata["partition-specs"] if s["spec-id"] == manifest.partition_spec_id
            )
            writer = ManifestWriter(
                io,
                metadata["format-version"],
                schema,
                PartitionSpec.model_validate(spec),
                PartitionSpec.model_validate(spec).partition_type(schema),
                manifest.added_snapshot_id,
            )
            path_of(manifest.manifest_path).unlink()
            described = writer.write(manifest.manifest_path, content, entries)
            described.sequence_number = manifest.sequence_number
            described[len(described) - 1] = manifest[len(manifest) - 1]
            manifests[number] = described

    edit_list(lake, rewrite)


def edit_files(
    lake: IcebergCatalog, content: ManifestContent, change: Callable[[ManifestEntry], None]
) -> None:
    """Change the first entry of each manifest."""
    edit_entries(lake, content, lambda entries: change(entries[0]))


def data_files(lake: IcebergCatalog, content: ManifestContent = DATA) -> list[ManifestEntry]:
    loaded = lake.load(NAME)
    assert loaded is not None
    return [
        entry
        for manifest in read_manifest_list(loaded.io, snapshot(lake)["manifest-list"])
        if manifest.content == content
        for entry in read_manifest(loaded.io, manifest)
    ]


def rewrite_parquet(location: str, change: Callable[[pa.Table], pa.Table]) -> int:
    """Write a Parquet file anew in its place; its new size."""
    file = path_of(location)
    rows = pq.read_table(file)
    pq.write_table(change(rows), file, store_schema=False)
    return file.stat().st_size


def findings(lake: IcebergCatalog, data: bool = True) -> list[Finding]:
    """What is wrong, as a process sees it that has not read the table before."""
    warehouse = str(lake.pyiceberg.properties["warehouse"]).removeprefix("file://")
    with closing(open_catalog({"folder": warehouse})) as fresh:
        loaded = fresh.load(NAME)
        assert loaded is not None
        return list(check_table(loaded, data).findings)
