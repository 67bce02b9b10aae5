"""`iceberg-stream check` names each violation of the specification that is planted in a table."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntry, ManifestFile

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.maintenance.check.finding import KINDS
from tests.integration.check.damage import (
    DATA,
    DELETES,
    FIELD,
    LISTED,
    data_files,
    edit_entries,
    edit_list,
    edit_metadata,
    findings,
    rewrite_parquet,
)
from tests.integration.check.test_check import DAMAGE, DOCS, PARTITIONED
from tests.integration.filled_tables import fill
from tests.integration.streams import NAME, Change, commit, open_sink
from tests.servers.iceberg_parser import refusal

Damage = Callable[[IcebergCatalog], Any]
Metadata = dict[str, Any]
PARTITION_FIELD = {"source-id": 2, "field-id": 1000, "name": "part", "transform": "identity"}
NAME_MAPPING = "schema.name-mapping.default"


def metadata(change: Callable[[Metadata], Any]) -> Damage:
    return lambda lake: edit_metadata(lake, change)


def column(**keys: Any) -> Damage:
    """Change the keys of the last column, `value`."""
    renamed = {key.replace("_", "-"): value for key, value in keys.items()}
    return metadata(lambda m: [s["fields"][2].update(renamed) for s in m["schemas"]])


def another_column(kind: Any, **keys: Any) -> Damage:
    """Add a column to all schemas, with the ids 4 to 9 for it and its fields."""
    added = {"id": 4, "name": "added", "required": False, "type": kind, **keys}

    def change(m: Metadata) -> None:
        m["last-column-id"] = 9
        for schema in m["schemas"]:
            schema["fields"].append({k.replace("_", "-"): v for k, v in added.items()})

    return metadata(change)


def mapping(text: str) -> Damage:
    return metadata(lambda m: m["properties"].update({NAME_MAPPING: text}))


def spec(*fields: dict[str, Any]) -> Damage:
    """Add a default spec without files."""

    def change(m: Metadata) -> None:
        new = {"spec-id": 7, "fields": [PARTITION_FIELD | field for field in fields]}
        m.update({"default-spec-id": 7, "last-partition-id": 1009})
        m["partition-specs"].append(new)

    return metadata(change)


def one_id_for_two(lake: IcebergCatalog) -> None:
    spec({})(lake)
    other = {"spec-id": 8, "fields": [PARTITION_FIELD | {"source-id": 3, "name": "value"}]}
    edit_metadata(lake, lambda m: m["partition-specs"].append(other))


def order(transform: str, number: int = 1) -> Damage:
    field = {"source-id": 3, "transform": transform, "direction": "asc"}
    new = {"order-id": number, "fields": [{**field, "null-order": "nulls-first"}]}

    def change(m: Metadata) -> None:
        m["sort-orders"] = [o for o in m["sort-orders"] if o["order-id"] != number] + [new]
        m["default-sort-order-id"] = number

    return metadata(change)


def rewritten(change: Callable[[pa.Table], pa.Table]) -> Damage:
    """Write each data file again."""

    def damage(lake: IcebergCatalog) -> None:
        for entry in data_files(lake):
            rewrite_parquet(entry.data_file.file_path, change)

    return damage


def with_id(field: pa.Field, identifier: int | None) -> pa.Field:
    if identifier is None:
        return field.remove_metadata()
    return field.with_metadata({"PARQUET:field_id": str(identifier)})


def ids(*identifiers: int | None) -> Damage:
    """Give the columns of all data files other field ids."""

    def change(rows: pa.Table) -> pa.Table:
        fields = [with_id(f, i) for f, i in zip(rows.schema, identifiers, strict=True)]
        return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))

    return rewritten(change)


def replaced(position: int, values: Callable[[int], pa.Array]) -> Damage:
    """Replace the values of a column in all data files, with values of another type."""

    def change(rows: pa.Table) -> pa.Table:
        new = values(rows.num_rows)
        return rows.set_column(position, rows.schema.field(position).with_type(new.type), new)

    return rewritten(change)


def nested(kind: dict[str, Any], values: Callable[[int], pa.Array]) -> Damage:
    """Add a nested column to the table and to the files."""

    def change(rows: pa.Table) -> pa.Table:
        new = values(rows.num_rows)
        return rows.append_column(with_id(pa.field("added", new.type), 4), new)

    def damage(lake: IcebergCatalog) -> None:
        another_column(kind)(lake)
        rewritten(change)(lake)

    return damage


def structs(identifier: int | None) -> Callable[[int], pa.Array]:
    inner = with_id(pa.field("a", pa.int32()), identifier)
    return lambda count: pa.array([{"a": 1}] * count, pa.struct([inner]))


def lists(identifier: int | None) -> Callable[[int], pa.Array]:
    inner = with_id(pa.field("element", pa.int32()), identifier)
    return lambda count: pa.array([[1]] * count, pa.list_(inner))


def narrower_decimals(lake: IcebergCatalog) -> None:
    column(type="decimal(10, 2)")(lake)
    replaced(2, lambda n: pa.array([Decimal(1)] * n, pa.decimal128(20, 2)))(lake)


def unsigned(lake: IcebergCatalog) -> None:
    column(type="int")(lake)
    replaced(2, lambda n: pa.array([2**32 - 1] * n, pa.uint32()))(lake)


def longer_fixed(lake: IcebergCatalog) -> None:
    column(type="fixed[4]")(lake)
    replaced(2, lambda n: pa.array([b"12345"] * n, pa.binary(5)))(lake)


def without_required(lake: IcebergCatalog) -> None:
    another_column("int")(lake)
    metadata(lambda m: [s["fields"][3].update(required=True) for s in m["schemas"]])(lake)


def positions(change: Callable[[ManifestEntry], None]) -> Damage:
    """Change the entries of position deletes and vectors."""

    def edit(entries: list[ManifestEntry]) -> None:
        for entry in entries:
            if entry.data_file.content == DataFileContent.POSITION_DELETES:
                change(entry)

    return lambda lake: edit_entries(lake, DELETES, edit)


def deletes_of_another_spec(lake: IcebergCatalog) -> None:
    """A table whose delete files are in a spec that none of its data files have."""
    field = PARTITION_FIELD | {"transform": "void"}

    def change(m: Metadata) -> None:
        m["partition-specs"].append({"spec-id": 1, "fields": [field]})
        m["last-partition-id"] = 1000

    def respec(manifests: list[ManifestFile]) -> None:
        for manifest in manifests:
            if manifest.content == DELETES:
                manifest[LISTED["partition_spec_id"]] = 1

    edit_metadata(lake, change)
    edit_list(lake, respec)


def vector_in_version_2(lake: IcebergCatalog) -> None:
    positions(lambda e: e.data_file.__setitem__(FIELD["file_format"], FileFormat.PUFFIN))(lake)


def vector_without_place(lake: IcebergCatalog) -> None:
    positions(lambda e: e.data_file.__setitem__(FIELD["content_offset"], None))(lake)


def unsorted_deletes(lake: IcebergCatalog) -> None:
    for entry in data_files(lake, DELETES):
        if entry.data_file.content == DataFileContent.POSITION_DELETES:
            rewrite_parquet(entry.data_file.file_path, lambda rows: rows.take([1, 0]))


def deleted_positions(values: pa.Array) -> Damage:
    """Store other positions in delete files."""

    def change(lake: IcebergCatalog) -> None:
        for entry in data_files(lake, DELETES):
            if entry.data_file.content == DataFileContent.POSITION_DELETES:
                place = entry.data_file.file_path
                rewrite_parquet(
                    place,
                    lambda rows: rows.set_column(
                        1,
                        rows.schema.field(1).with_type(values.type).with_nullable(True),
                        values[: rows.num_rows],
                    ),
                )

    return change


def sorted_files(fields: list[dict[str, Any]]) -> Damage:
    """Data files say that they are in a sort order."""

    def number(entries: list[ManifestEntry]) -> None:
        for entry in entries:
            entry.data_file[FIELD["sort_order_id"]] = 4

    def change(lake: IcebergCatalog) -> None:
        edit_metadata(lake, lambda m: m["sort-orders"].append({"order-id": 4, "fields": fields}))
        edit_entries(lake, DATA, number)

    return change


def first_row_id(number: int) -> Damage:
    def change(entries: list[ManifestEntry]) -> None:
        entries[0].data_file[FIELD["first_row_id"]] = number

    return lambda lake: edit_entries(lake, DATA, change)


def deletes_of_no_file(lake: IcebergCatalog) -> None:
    positions(lambda e: e.data_file.__setitem__(FIELD["referenced_data_file"], "file:///gone"))(
        lake
    )


def field(name: str, change: Callable[[Any], Any]) -> Callable[[ManifestEntry], None]:
    def edit(entry: ManifestEntry) -> None:
        entry.data_file[FIELD[name]] = change(entry.data_file[FIELD[name]])

    return edit


def in_files_of_deletes(change: Callable[[pa.Table], pa.Table]) -> Damage:
    """Write the position delete files again; their manifest names no data file."""

    def damage(lake: IcebergCatalog) -> None:
        for entry in data_files(lake, DELETES):
            if entry.data_file.content == DataFileContent.POSITION_DELETES:
                rewrite_parquet(entry.data_file.file_path, change)
        for name in ("referenced_data_file", "lower_bounds", "upper_bounds"):
            positions(field(name, lambda _: None))(lake)

    return damage


def respelled(location: str) -> str:
    return location.replace("file:///", "file:/")


def respelled_paths(rows: pa.Table) -> pa.Table:
    paths = pa.array([respelled(path.as_py()) for path in rows["file_path"]])
    return rows.set_column(0, rows.schema.field(0), paths)


def without_ids(rows: pa.Table) -> pa.Table:
    return rows.cast(pa.schema([with_id(column, None) for column in rows.schema]))


def twice_in_two_spellings(lake: IcebergCatalog) -> None:
    def change(entries: list[ManifestEntry]) -> None:
        entries.append(copy.deepcopy(entries[0]))
        field("file_path", respelled)(entries[-1])

    edit_entries(lake, DATA, change)


def vector_of_another_file(lake: IcebergCatalog) -> None:
    files = {entry.data_file.file_path for entry in data_files(lake)}
    positions(field("referenced_data_file", lambda path: min(files - {path})))(lake)


def data_file_in_orc(lake: IcebergCatalog) -> None:
    def change(entries: list[ManifestEntry]) -> None:
        entries[0].data_file[FIELD["file_format"]] = FileFormat.ORC

    edit_entries(lake, DATA, change)


def stored_row_ids(first: int) -> Damage:
    """Each data file stores the same row ids."""

    def change(rows: pa.Table) -> pa.Table:
        field = with_id(pa.field("_row_id", pa.int64()), 2147483540)
        return rows.append_column(field, pa.array(range(first, first + rows.num_rows)))

    return rewritten(change)


def nulls_beside_the_key(lake: IcebergCatalog) -> None:
    """Equality deletes have a required column that is not of the key, and has nulls."""
    column(required=True)(lake)

    def add(rows: pa.Table) -> pa.Table:
        return rows.append_column(
            with_id(pa.field("value", pa.string()), 3), pa.nulls(len(rows), pa.string())
        )

    def change(entries: list[ManifestEntry]) -> None:
        for entry in entries:
            if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                size = rewrite_parquet(entry.data_file.file_path, add)
                entry.data_file[FIELD["file_size_in_bytes"]] = size
                entry.data_file[FIELD["split_offsets"]] = None

    edit_entries(lake, DELETES, change)


STRUCT = {"type": "struct", "fields": [{"id": 5, "name": "a", "required": False, "type": "int"}]}
LIST = {"type": "list", "element-id": 5, "element": "int", "element-required": False}
OPTIONAL_STRUCT = {
    "type": "struct",
    "fields": [{"id": 5, "name": "a", "required": True, "type": "int"}],
}

METADATA: list[tuple[str, int, Damage]] = [
    ("metadata-refused", 2, column(type="decimal(39, 2)")),
    ("metadata-refused", 2, lambda lake: (another_column(OPTIONAL_STRUCT)(lake), metadata(lambda m: m["schemas"][-1].update({"identifier-field-ids": [5]}))(lake))),
    ("metadata-refused", 2, metadata(lambda m: m["refs"].update(t={"snapshot-id": m["current-snapshot-id"], "type": "tag", "min-snapshots-to-keep": 2}))),
    ("reserved-id", 2, another_column("int", id=2147483546)),
    ("type-version", 2, another_column("timestamp_ns")),
    ("unknown-required", 3, another_column("unknown", required=True)),
    ("default-version", 2, column(write_default="x")),
    ("default-value", 3, column(initial_default=5)),
    ("default-value", 3, another_column("int", write_default=2**31)),
    ("default-value", 3, another_column("decimal(5, 2)", initial_default="1.5")),
    ("default-value", 3, another_column("timestamptz", initial_default="2024-01-01T00:00:00")),
    ("default-value", 3, another_column("unknown", initial_default="x")),
    ("default-value", 3, another_column(STRUCT, initial_default={"5": 1})),
    ("name-mapping", 2, mapping("[{")),
    ("name-mapping", 2, mapping('[{"names": ["id"], "fields": ' * 9000 + "[]" + "}]" * 9000)),
    ("name-mapping", 2, mapping('{"field-id": 1}')),
    ("name-mapping", 2, mapping('[{"field-id": 1}]')),
    ("name-mapping", 2, mapping('[{"field-id": "1", "names": ["id"]}]')),
    ("name-mapping", 2, mapping('[{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["id"]}]')),
    ("partition-fields", 2, spec({}, {"field-id": 1001})),
    ("partition-fields", 2, spec({}, {"name": "other"})),
    ("partition-fields", 2, one_id_for_two),
    ("transform-source", 2, spec({"transform": "day"})),
    ("transform-source", 2, order("hour")),
    ("transform-source", 2, lambda lake: (another_column(LIST)(lake), spec({"source-id": 5})(lake))),
    ("transform-unknown", 2, spec({"transform": "zorder"})),
    ("sort-order-zero", 2, order("identity", 0)),
    ("main-branch", 2, metadata(lambda m: m["refs"]["main"].update(type="tag"))),
    ("snapshot-log", 2, metadata(lambda m: m["snapshot-log"][0].update({"snapshot-id": 5}))),
    ("snapshot-log", 2, metadata(lambda m: m["snapshot-log"].pop())),
    ("metadata-log", 2, metadata(lambda m: m["metadata-log"][0].update({"metadata-file": f"{m['location']}/gone"}))),
    ("snapshot-operation", 2, metadata(lambda m: m["snapshots"][0]["summary"].update(operation="merge"))),
]  # fmt: skip
FILES: list[tuple[str, int, Damage]] = [
    ("field-id", 2, ids(1, 2, None)),
    ("field-id", 2, ids(1, 3, 2)),
    ("field-id", 2, ids(1, 2, 2)),
    ("field-id", 2, ids(1, 2, 77)),
    ("field-id", 2, nested(STRUCT, structs(None))),
    ("field-id", 2, nested(STRUCT, structs(1))),
    ("field-id", 2, nested(LIST, lists(None))),
    ("field-id", 2, nested(LIST, lists(2))),
    ("column-type", 2, narrower_decimals),
    ("column-type", 2, unsigned),
    ("column-type", 2, longer_fixed),
    ("column-type", 2, replaced(2, structs(5))),
    ("column-type", 2, nested(LIST, lambda n: pa.array([1] * n))),
    ("required-absent", 2, without_required),
    ("delete-partition", 2, deletes_of_another_spec),
    ("delete-partition", 3, deletes_of_another_spec),
    ("vector-version", 2, vector_in_version_2),
    ("vector-fields", 2, vector_in_version_2),
    ("vector-fields", 3, vector_without_place),
    ("unsorted-deletes", 2, unsorted_deletes),
    ("dangling-delete", 2, deletes_of_no_file),
    ("delete-location", 3, positions(field("referenced_data_file", respelled))),
    ("delete-location", 2, in_files_of_deletes(respelled_paths)),
    ("field-id", 2, in_files_of_deletes(without_ids)),
    ("vector-blob", 3, vector_of_another_file),
    ("vector-blob", 3, positions(field("content_offset", lambda offset: offset + 1))),
    ("file-twice", 2, twice_in_two_spellings),
    ("value-counts", 2, rewritten(lambda rows: rows.drop_columns(["value"]))),
    ("not-checked", 2, data_file_in_orc),
    ("row-id-twice", 3, stored_row_ids(0)),
    ("row-ids", 3, stored_row_ids(1000)),
    ("row-ids", 3, first_row_id(-5)),
    ("unreadable-file", 2, deleted_positions(pa.nulls(9, pa.int64()))),
    ("unreadable-file", 2, deleted_positions(pa.array(["0"] * 9))),
    ("position-past-end", 2, deleted_positions(pa.array([-1] * 9))),
]
# What is right, or only unusual.
VALID: list[tuple[int, Damage]] = [
    (2, sorted_files([])),
    (2, nulls_beside_the_key),
    (3, sorted_files([{"source-ids": [1], "transform": "identity", "direction": "asc", "null-order": "nulls-first"}])),
    (3, another_column("date", write_default="+12000-01-01")),
    (3, another_column("timestamp", write_default="-0044-03-15T00:00:00")),
]  # fmt: skip


def names(damage: list[tuple[str, int, Damage]]) -> list[str]:
    return [f"{code}-{number}" for number, (code, _, _) in enumerate(damage)]


@pytest.mark.parametrize(("code", "version", "damage"), METADATA, ids=names(METADATA))
def test_violation_in_metadata(
    lake: IcebergCatalog, parser: None, code: str, version: int, damage: Damage
) -> None:
    fill(lake, version)
    damage(lake)
    reported = findings(lake)
    assert code in {finding.code for finding in reported}
    loaded = lake.load(NAME)
    assert loaded is not None
    refused = any(finding.kind.refused for finding in reported)
    # What Iceberg cannot read is an error, and only that is said to be refused.
    assert not refused or refusal(loaded.location)


@pytest.mark.parametrize(("code", "version", "damage"), FILES, ids=names(FILES))
def test_violation_in_files(lake: IcebergCatalog, code: str, version: int, damage: Damage) -> None:
    fill(lake, version)
    damage(lake)
    assert code in {finding.code for finding in findings(lake)}


@pytest.mark.parametrize(("version", "change"), VALID)
def test_what_is_valid(lake: IcebergCatalog, version: int, change: Damage) -> None:
    fill(lake, version)
    change(lake)
    assert [f for f in findings(lake) if f.severity != "note"] == []


@pytest.mark.parametrize("named", [True, False])
def test_a_position_delete_in_another_partition_than_its_file(
    lake: IcebergCatalog, named: bool
) -> None:
    """Whether its manifest names the data file, or only the delete file does."""
    fill(lake, 2, partitioned=True)
    sink = open_sink(lake)
    again = [Change(key % 2, f"w{key}", "ab"[key % 2]) for key in range(6)]
    commit(sink, again, 12, rows=3, max_keys=100, partitioned=True)
    assert "delete-partition" not in {finding.code for finding in findings(lake)}

    def move(entry: ManifestEntry) -> None:
        file = entry.data_file
        file[FIELD["partition"]][0] = "b" if file.partition[0] == "a" else "a"
        if not named:
            file[FIELD["referenced_data_file"]] = None
            file[FIELD["lower_bounds"]] = None

    positions(move)(lake)
    assert "delete-partition" in {finding.code for finding in findings(lake)}


def test_rules_without_a_test_are_named() -> None:
    """The docs list the rules whose violation no test plants."""
    elsewhere = {
        "delete-partition",
        "metadata-lost",  # tests/unit/cli/test_check.py
    }
    tables = (METADATA, FILES, DAMAGE, PARTITIONED)
    planted = {code for table in tables for code, _, _ in table} | elsewhere
    section = DOCS.read_text().split("## Rules without a test")[1].split("These rules of")[0]
    listed = {word for word in re.findall(r"`([a-z-]+)`", section) if word in KINDS}
    assert listed == set(KINDS) - planted
