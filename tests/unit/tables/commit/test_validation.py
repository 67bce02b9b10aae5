"""Whether what a change was made from still holds, after others have committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, Validation, append
from dbt.adapters.iceberg_stream.tables.commit.validation import (
    FILE_PATH,
    ValidationFailed,
    validate,
)
from tests.unit.local_tables import commit, data_file, load, make_table, set_metadata

EQUALITY, POSITION = DataFileContent.EQUALITY_DELETES, DataFileContent.POSITION_DELETES


@pytest.fixture
def base(lake: IcebergCatalog) -> int:
    """The snapshot of a table with the files a and b."""
    # Delete files of version 2 do not name their data file.
    make_table(lake, 3)
    return add(lake, data_file("a"), data_file("b"))


def add(lake: IcebergCatalog, *files: DataFile, **properties: str) -> int:
    return commit(lake, append(*files, properties=properties)).snapshot.snapshot_id


def delete(lake: IcebergCatalog, file: DataFile) -> int:
    change = Change(Operation.DELETE, (AddedFiles(deletes=(file,)),))
    return commit(lake, change).snapshot.snapshot_id


def check(
    lake: IcebergCatalog,
    since: int | None,
    conflicts: Callable[[DataFile], bool] | None = lambda _: True,
    removed: tuple[str, ...] = (),
    **more: Any,
) -> None:
    table = load(lake)
    validation = Validation(since, conflicts, **more)
    files = tuple(data_file(path) for path in removed)
    change = Change(Operation.OVERWRITE, removed=files, validation=validation)
    validate(table.io, table.metadata, table.metadata, change)


def test_nothing_has_come(lake: IcebergCatalog, base: int) -> None:
    check(lake, base)
    table = load(lake)
    validate(table.io, table.metadata, table.metadata, append(properties={}))


def test_files_that_had_to_be_seen(lake: IcebergCatalog, base: int) -> None:
    add(lake, data_file("c"), data_file("d"), **{"iceberg-stream.model": "other"})
    with pytest.raises(
        ValidationFailed, match=r"added 1 data files .*snapshot \d+ by other"
    ) as raised:
        check(lake, base, lambda file: file.file_path == "c")
    assert [file.file_path for file in raised.value.added] == ["c"]
    assert raised.value.removed == set()
    check(lake, base, lambda file: file.file_path == "a")
    check(lake, base, None)


def test_all_snapshots_since_are_looked_at(lake: IcebergCatalog, base: int) -> None:
    add(lake, data_file("c"))
    second = add(lake, data_file("d"))
    with pytest.raises(ValidationFailed) as raised:
        check(lake, base)
    assert sorted(file.file_path for file in raised.value.added) == ["c", "d"]
    check(lake, second)


def test_compactions_change_no_rows(lake: IcebergCatalog, base: int) -> None:
    compacted = (AddedFiles((data_file("ab", 2),)),)
    removed = (data_file("a"), data_file("b"))
    commit(lake, Change(Operation.REPLACE, compacted, removed=removed))
    check(lake, base)


def test_an_empty_table(lake: IcebergCatalog) -> None:
    make_table(lake)
    check(lake, None)
    add(lake, data_file("a"))
    with pytest.raises(ValidationFailed, match="added 1 data files"):
        check(lake, None)
    check(lake, None, lambda _: False)


def test_an_empty_table_whose_first_snapshots_have_expired(lake: IcebergCatalog) -> None:
    make_table(lake)
    add(lake, data_file("a"))
    add(lake, data_file("b"))
    kept = load(lake).metadata["snapshots"][1:]
    set_metadata(lake, snapshots=kept, snapshot_log=[])
    with pytest.raises(ValidationFailed, match="was empty when this write began"):
        check(lake, None, lambda _: False)


def test_a_snapshot_that_is_gone(lake: IcebergCatalog, base: int) -> None:
    add(lake, data_file("c"))
    with pytest.raises(ValidationFailed, match="the snapshot 7 that this write read"):
        check(lake, 7, lambda _: False)
    set_metadata(lake, snapshots=load(lake).metadata["snapshots"][1:], snapshot_log=[])
    with pytest.raises(ValidationFailed, match=f"the snapshot {base} "):
        check(lake, base, lambda _: False)


def bounds(*paths: str) -> dict[str, dict[int, bytes]]:
    return {
        "lower_bounds": {FILE_PATH: min(paths).encode()},
        "upper_bounds": {FILE_PATH: max(paths).encode()},
    }


@pytest.mark.parametrize(
    ("deletes", "hidden"),
    [
        (data_file("x", content=EQUALITY, equality_ids=[1]), True),
        (data_file("x", content=POSITION), True),
        (data_file("x", content=POSITION, referenced_data_file="a"), True),
        (data_file("x", content=POSITION, referenced_data_file="b"), False),
        (data_file("x", content=POSITION, **bounds("a", "a")), True),
        (data_file("x", content=POSITION, **bounds("0", "a")), True),
        (data_file("x", content=POSITION, **bounds("a", "b")), True),
        (data_file("x", content=POSITION, **bounds("b", "c")), False),
        (data_file("x", content=POSITION, **bounds("0", "1")), False),
        (data_file("x", content=POSITION, lower_bounds=bounds("b")["lower_bounds"]), True),
        (data_file("x", content=POSITION, upper_bounds=bounds("0")["upper_bounds"]), True),
    ],
)
def test_deletes_of_rows_in_files_that_go(
    lake: IcebergCatalog, base: int, deletes: DataFile, hidden: bool
) -> None:
    delete(lake, deletes)
    check(lake, base)
    check(lake, base, removed=("a",), new_deletes=False)
    if not hidden:
        check(lake, base, removed=("a",))
        return
    with pytest.raises(ValidationFailed, match="deleted rows of files that this write changes"):
        check(lake, base, removed=("a",))


def test_deletes_before_are_no_conflict(lake: IcebergCatalog, base: int) -> None:
    since = delete(lake, data_file("x", content=EQUALITY, equality_ids=[1]))
    check(lake, since, removed=("a",))
