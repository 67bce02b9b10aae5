"""`iceberg-stream check` names what other writers leave in columns, definitions and deletes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyiceberg.manifest import FileFormat, ManifestEntry, ManifestFile

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.cli.check import check
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.integration.damage import (
    DATA,
    DELETES,
    FIELD,
    LISTED,
    data_files,
    edit_entries,
    edit_list,
    edit_metadata,
    path_of,
)
from tests.integration.filled_tables import fill
from tests.integration.streams import NAME
from tests.integration.writers import open_catalog

ID = b"PARQUET:field_id"
ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int32()),
        "name": ["a", "b"],
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
        "item": [{"x": 1, "y": 2}, None],
        "tags": [["a"], []],
        "counts": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    }
)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    lake = open_catalog({"folder": str(tmp_path / "warehouse")})
    lake.create_namespace("s")
    yield lake
    lake.close()


def codes(lake: IcebergCatalog) -> set[str]:
    """The codes of all findings, as another process sees them."""
    fresh = open_catalog({"folder": str(lake.pyiceberg.properties["warehouse"])[len("file://") :]})
    loaded = fresh.load(NAME)
    assert loaded is not None
    found = {f.code for f in check_table(loaded, data=True).findings if f.severity != "note"}
    fresh.close()
    return found


def nested(lake: IcebergCatalog, version: int) -> None:
    properties = {"format-version": str(version)}
    ingest(lake, NAME, ROWS.to_reader(), Mode.CREATE, properties=properties)


@pytest.mark.parametrize("version", [2, 3])
def test_nothing_is_wrong(lake: IcebergCatalog, version: int) -> None:
    nested(lake, version)
    assert codes(lake) == set()


def in_file(change: Callable[[pa.Table], pa.Table]) -> Callable[[IcebergCatalog], None]:
    """Write the data file anew, with other columns or ids of columns."""

    def rewrite(lake: IcebergCatalog) -> None:
        def resize(entries: list[ManifestEntry]) -> None:
            for entry in entries:
                size = path_of(entry.data_file.file_path).stat().st_size
                entry.data_file[FIELD["file_size_in_bytes"]] = size

        for entry in data_files(lake):
            file = path_of(entry.data_file.file_path)
            pq.write_table(change(pq.read_table(file)), file, store_schema=False)
        edit_entries(lake, DATA, resize)

    return rewrite


def renumbered(numbers: dict[str, int | None]) -> Callable[[pa.Table], pa.Table]:
    """Give fields, by their names, other ids or none."""

    def field(old: pa.Field) -> pa.Field:
        kind, kept = old.type, dict(old.metadata or {})
        if pa.types.is_struct(kind):
            kind = pa.struct([field(child) for child in kind.fields])
        elif pa.types.is_map(kind):
            kind = pa.map_(field(kind.key_field), field(kind.item_field))
        elif pa.types.is_list(kind):
            kind = pa.list_(field(kind.value_field))
        if old.name in numbers:
            kept.pop(ID, None)
            if (number := numbers[old.name]) is not None:
                kept[ID] = str(number).encode()
        return pa.field(old.name, kind, old.nullable, kept)

    return lambda rows: pa.Table.from_arrays(
        [
            column.cast(field(old).type)
            for column, old in zip(rows.columns, rows.schema, strict=True)
        ],
        schema=pa.schema([field(old) for old in rows.schema]),
    )


def retyped(name: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index(name)
        return rows.set_column(at, rows.schema.field(at).with_type(kind), rows[name].cast(kind))

    return change


def in_metadata(change: Callable[[dict[str, Any]], Any]) -> Callable[[IcebergCatalog], None]:
    return lambda lake: edit_metadata(lake, change)


def column(number: int, **changes: Any) -> Callable[[IcebergCatalog], None]:
    return in_metadata(lambda m: m["schemas"][-1]["fields"][number].update(changes))


def partitioned(*fields: dict[str, Any]) -> Callable[[IcebergCatalog], None]:
    def change(metadata: dict[str, Any]) -> None:
        numbered = [{"field-id": 1000 + n, **field} for n, field in enumerate(fields)]
        metadata["partition-specs"].append({"spec-id": 7, "fields": numbered})
        metadata["last-partition-id"] = 1010

    return in_metadata(change)


def mapping(text: str) -> Callable[[IcebergCatalog], None]:
    return in_metadata(lambda m: m["properties"].update({"schema.name-mapping.default": text}))


def sorted_by(transform: str, source: int) -> Callable[[IcebergCatalog], None]:
    field = {
        "source-id": source,
        "transform": transform,
        "direction": "asc",
        "null-order": "nulls-first",
    }
    return in_metadata(lambda m: m["sort-orders"].append({"order-id": 7, "fields": [field]}))


DAMAGE: list[tuple[str, int, Callable[[IcebergCatalog], None]]] = [
    ("field-ids-missing", 2, in_file(renumbered({"name": None}))),
    ("field-ids-missing", 2, in_file(renumbered({"y": None}))),
    ("field-ids-missing", 2, in_file(renumbered({"element": None}))),
    ("file-field-ids", 2, in_file(renumbered({"name": 1}))),
    ("file-field-ids", 2, in_file(renumbered({"x": 8, "y": 7}))),
    ("file-field-ids", 2, in_file(renumbered({"element": 2}))),
    ("file-field-ids", 2, in_file(renumbered({"value": 1}))),
    ("required-column-missing", 2, lambda lake: [column(0, required=True)(lake), in_file(lambda rows: rows.drop_columns("id"))(lake)]),
    ("column-type", 2, in_file(retyped("price", pa.decimal128(20, 2)))),
    ("column-type", 2, in_file(retyped("id", pa.uint32()))),
    ("column-type", 2, in_file(lambda rows: rows.set_column(4, rows.schema.field(4).with_type(pa.string()), pa.array(["a", "b"])))),
    ("type-version", 2, column(1, type="variant")),
    ("default-value", 2, column(0, **{"initial-default": 1})),
    ("default-value", 3, column(0, **{"initial-default": "one"})),
    ("default-value", 3, column(0, **{"write-default": 2**31})),
    ("default-value", 3, column(2, **{"write-default": "1.5"})),
    ("transform-type", 2, partitioned({"name": "d", "source-id": 2, "transform": "day"})),
    ("transform-type", 2, partitioned({"name": "d", "source-id": 4, "transform": "identity"})),
    ("transform-type", 2, sorted_by("hour", 1)),
    ("partition-fields", 2, partitioned(*({"name": "d", "source-id": n, "transform": "identity"} for n in (1, 2)))),
    ("partition-fields", 2, partitioned(*({"name": f"d{n}", "source-id": n, "transform": "identity", "field-id": 1000} for n in (1, 2)))),
    ("main-branch", 2, in_metadata(lambda m: m["refs"]["main"].update({"type": "tag"}))),
    ("snapshot-log", 2, in_metadata(lambda m: m["snapshot-log"][0].update({"snapshot-id": 5}))),
    ("snapshot-operation", 2, in_metadata(lambda m: m["snapshots"][0]["summary"].update({"operation": "merge"}))),
    ("name-mapping", 2, mapping("[{")),
    ("name-mapping", 2, mapping('{"names": ["id"]}')),
    ("name-mapping", 2, mapping('[{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["id"]}]')),
    ("name-mapping", 2, mapping('[{"field-id": 4, "names": ["item"], "fields": [{"field-id": "7"}]}]')),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "version", "damage"), DAMAGE, ids=[f"{d[0]}-{n}" for n, d in enumerate(DAMAGE)]
)
def test_damage_is_named(
    lake: IcebergCatalog, code: str, version: int, damage: Callable[[IcebergCatalog], None]
) -> None:
    nested(lake, version)
    damage(lake)
    assert code in codes(lake)


def test_a_metadata_file_that_is_lost(lake: IcebergCatalog, tmp_path: Path) -> None:
    nested(lake, 2)
    file = path_of(lake.load(NAME).location)  # type: ignore[union-attr]
    (tmp_path / "dbt_project.yml").write_text("{name: p, profile: p}")
    output = {"type": "iceberg_stream", "schema": "s", "warehouse": str(tmp_path / "warehouse")}
    profile = {"p": {"target": "t", "outputs": {"t": {**output, "database": lake.name}}}}
    (tmp_path / "profiles.yml").write_text(json.dumps(profile))
    file.write_text(file.read_text()[:40])
    arguments = ["s", "--project-dir", str(tmp_path), "--profiles-dir", str(tmp_path)]
    torn = CliRunner().invoke(check, arguments)
    assert "missing-metadata" in torn.output
    assert "Its metadata file is no JSON" in torn.output
    file.unlink()
    missing = CliRunner().invoke(check, arguments)
    assert "The file is missing." in missing.output
    assert missing.exit_code == torn.exit_code == 1


def stored_ids(*numbers: int | None) -> Callable[[pa.Table], pa.Table]:
    field = pa.field("_row_id", pa.int64(), metadata={ID: b"2147483540"})
    return lambda rows: rows.append_column(field, pa.array(numbers, pa.int64()))


def test_row_ids_that_are_stored_twice(lake: IcebergCatalog) -> None:
    nested(lake, 3)
    in_file(stored_ids(0, None))(lake)
    assert codes(lake) == set()
    in_file(lambda rows: stored_ids(1, 1)(rows.drop_columns("_row_id")))(lake)
    assert codes(lake) == {"row-ids"}


def test_a_row_id_of_another_file(lake: IcebergCatalog) -> None:
    nested(lake, 3)
    ingest(lake, NAME, ROWS.to_reader(), Mode.APPEND)
    in_file(stored_ids(0, None))(lake)
    assert codes(lake) == {"row-ids"}


def test_deletes_in_another_partition(lake: IcebergCatalog) -> None:
    fill(lake, 2)
    partitioned()(lake)

    def move(manifests: list[ManifestFile]) -> None:
        for manifest in manifests:
            if manifest.content == DELETES:
                manifest[LISTED["partition_spec_id"]] = 7

    edit_list(lake, move)
    assert "delete-partition" in codes(lake)


def test_a_vector_in_format_version_2(lake: IcebergCatalog) -> None:
    fill(lake, 2)

    def change(entries: list[ManifestEntry]) -> None:
        for entry in entries:
            if entry.data_file.content == 1:
                entry.data_file[FIELD["file_format"]] = FileFormat.PUFFIN

    edit_entries(lake, DELETES, change)
    assert "vector-version" in codes(lake)


def test_a_vector_without_a_place(lake: IcebergCatalog) -> None:
    fill(lake, 3)

    def change(entries: list[ManifestEntry]) -> None:
        for entry in entries:
            if entry.data_file.file_format == FileFormat.PUFFIN:
                entry.data_file[FIELD["content_offset"]] = None

    edit_entries(lake, DELETES, change)
    assert "vector-fields" in codes(lake)
