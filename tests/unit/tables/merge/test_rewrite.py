"""Merges by rewriting files, as PyIceberg reads what they leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import SortDirection, SortField, SortOrder
from pyiceberg.table.update import (
    AddSortOrderUpdate,
    SetDefaultSortOrderUpdate,
    SetSnapshotRefUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, append
from dbt.adapters.iceberg_stream.tables.deletes.conversion import convert_equality_deletes
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import (
    deleted_rows,
    old_file,
    snapshot_files,
)
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.data_files import with_lineage
from dbt.adapters.iceberg_stream.tables.files.deletes import write_equality_deletes
from dbt.adapters.iceberg_stream.tables.files.reader import NotByRewriting, OldFile, live_rows
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.merge import engine
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes
from dbt.adapters.iceberg_stream.tables.merge.conditions import Comparison
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import FileChange, FileRewrite
from dbt.adapters.iceberg_stream.tables.merge.located import FILE, POS, UPDATES, Located
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan, why_spark
from dbt.adapters.iceberg_stream.tables.merge.rewrite import Merged, RewriteMerge
from dbt.adapters.iceberg_stream.tables.merge.rows import Source
from dbt.adapters.iceberg_stream.tables.merge.threads import in_threads
from tests.unit.local_tables import (
    NAME,
    SCHEMA,
    commit,
    data_file,
    evolve,
    files,
    home,
    insert,
    live,
    load,
    make_table,
    rows,
    write,
)


def branch_rows(lake: IcebergCatalog) -> list[tuple[object, ...]]:
    snapshot_id = lake.table(NAME).metadata.refs["audit"].snapshot_id
    actual = lake.table(NAME).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in actual)


def merge(lake: IcebergCatalog, source: pa.Table, plan: MergePlan) -> Merged:
    run = RewriteMerge(lake, NAME, Source(source, plan.keys), plan, lambda _: None, "w", {})
    return run.run(load(lake))


@pytest.fixture
def ordered(lake: IcebergCatalog) -> IcebergCatalog:
    """A table whose files are sorted by id."""
    make_table(lake)
    by_id = SortField(1, IdentityTransform(), SortDirection.ASC)
    updates = (
        AddSortOrderUpdate(sort_order=SortOrder(by_id, order_id=1)),
        SetDefaultSortOrderUpdate.model_validate({"sort-order-id": -1}),
    )
    lake.commit(load(lake), (), updates)
    insert(lake, pa.table({"id": [3, 1, 2], "x": ["c", "a", "b"]}))
    return lake


def test_other_columns_leave_the_order_as_it_is(ordered: IcebergCatalog) -> None:
    assert [file.sort_order_id for file in live(ordered)] == [1]
    plan = MergePlan(("id",), ("x",), False)
    merge(ordered, pa.table({"id": [2], "x": ["new"]}), plan)
    assert rows(ordered) == [(1, "a"), (2, "new"), (3, "c")]
    assert [file.sort_order_id for file in live(ordered)] == [1]


def test_a_file_whose_sort_column_was_updated_is_not_sorted(ordered: IcebergCatalog) -> None:
    plan = MergePlan(("x",), ("id",), False)
    merge(ordered, pa.table({"id": [0], "x": ["b"]}), plan)
    assert rows(ordered) == [(0, "b"), (1, "a"), (3, "c")]
    assert [file.sort_order_id for file in live(ordered)] == [None]


def test_rows_that_go_leave_the_order_as_it_is(ordered: IcebergCatalog) -> None:
    plan = MergePlan(("x",), (), False, Deletes.MATCHED)
    merge(ordered, pa.table({"x": ["b"], "id": [0]}), plan)
    assert rows(ordered) == [(1, "a"), (3, "c")]
    assert [file.sort_order_id for file in live(ordered)] == [1]


@pytest.mark.parametrize("other_branch", ["main", "audit"])
def test_a_branch_while_another_writer_commits(ordered: IcebergCatalog, other_branch: str) -> None:
    """Main stays as it is, and only the other writer of the branch makes the merge run again."""
    head = ordered.table(NAME).metadata.current_snapshot_id
    branch = {"ref-name": "audit", "type": "branch", "snapshot-id": head}
    ordered.commit(load(ordered), (), (SetSnapshotRefUpdate.model_validate(branch),))
    source = Source(pa.table({"id": [2, 9], "x": ["new", "nine"]}), ("id",))
    plan = MergePlan(("id",), ("x",), True)
    run = RewriteMerge(ordered, NAME, source, plan, lambda _: None, "w", {}, branch="audit")
    base = load(ordered)
    files = write(ordered, pa.table({"id": [2, 4], "x": ["other", "four"]}))
    commit(ordered, append(*files, properties={}, branch=other_branch))
    main = rows(ordered)
    merged = run.run(base)
    assert rows(ordered) == main
    expected = [(1, "a"), (2, "new"), (3, "c"), (9, "nine")]
    if other_branch == "audit":
        expected += [(2, "new"), (4, "four")]
    assert branch_rows(ordered) == sorted(expected)
    assert merged.rewritten == (2 if other_branch == "audit" else 1)


def test_conditions_that_hold_no_more_after_another_commit(lake: IcebergCatalog) -> None:
    """Such as one with a subquery: the file is the same, and no row of it changes now."""
    make_table(lake)
    insert(lake, pa.table({"id": [1, 2], "x": ["a", "b"]}))
    (file,) = live(lake)
    matches = {FILE: [file.file_path], POS: [1], "id": [2], UPDATES: [True]}
    answers = [pa.table(matches), pa.table(matches).slice(0, 0)]

    def locate(base: LoadedTable, source: Source) -> Located:
        if len(answers) == 2:
            insert(lake, pa.table({"id": [2], "x": ["other"]}))
        return Located(source, answers.pop(0))

    source = Source(pa.table({"id": [2], "x": ["new"]}), ("id",))
    plan = MergePlan(("id",), ("x",), False)
    RewriteMerge(lake, NAME, source, plan, lambda _: None, "w", {}, locate=locate).run(load(lake))
    assert answers == []
    assert rows(lake) == [(1, "a"), (2, "b"), (2, "other")]


def delete_equal(lake: IcebergCatalog, *keys: int, branch: str = "main") -> None:
    """Let another writer delete rows by equality deletes."""
    base = load(lake)
    target = WriteTarget.of(base.metadata, base.io)
    name = f"equal-{keys[0]}-{base.metadata['last-sequence-number']}"
    file = write_equality_deletes(target, name, pa.table({"id": keys}), partition=None)
    commit(lake, Change(Operation.DELETE, (AddedFiles((), (file,)),), branch=branch))


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
@pytest.mark.parametrize("version", [2, 3])
def test_rows_that_equality_deletes_have_deleted(
    lake: IcebergCatalog, mode: str, version: int
) -> None:
    """They stay deleted, also if the deletes come while the merge runs."""
    make_table(lake, version)
    insert(lake, pa.table({"id": [1, 2, 3, 4, 5], "x": list("abcde")}))
    delete_equal(lake, 2, 5)
    attempts: list[int] = []

    def run(rewrite: FileRewrite, files: Sequence[OldFile]) -> Iterator[FileChange]:
        yield from in_threads(rewrite, files)
        attempts.append(len(files))
        if len(attempts) == 1:
            delete_equal(lake, 4)

    plan, source = MergePlan(("id",), ("x",), True), pa.table({"id": [1, 2, 6], "x": ["new"] * 3})
    runs = RewriteMerge(
        lake, NAME, Source(source, plan.keys), plan, lambda _: None, "w", {}, run, mode=mode
    )
    merged = runs.run(load(lake))
    assert (merged.updated, merged.inserted, attempts) == (1, 2, [1, 1])
    convert_equality_deletes(lake, NAME, {})
    assert rows(lake) == [(1, "new"), (2, "new"), (3, "c"), (6, "new")]


def test_equality_deletes_are_those_of_the_branch(lake: IcebergCatalog) -> None:
    make_table(lake)
    first = insert(lake, pa.table({"id": [1, 2, 3], "x": ["a", "b", "c"]}))
    snapshot_id = first.snapshot.snapshot_id
    reference = {"ref-name": "audit", "type": "branch", "snapshot-id": snapshot_id}
    lake.commit(load(lake), (), (SetSnapshotRefUpdate.model_validate(reference),))
    delete_equal(lake, 1)
    delete_equal(lake, 2, branch="audit")
    plan, source = MergePlan(("id",), ("x",), True), pa.table({"id": [1, 2, 3], "x": ["new"] * 3})
    counts = []
    for branch in ("main", "audit"):
        rewrite = RewriteMerge(
            lake, NAME, Source(source, plan.keys), plan, lambda _: None, branch, {}, branch=branch
        )
        merged = rewrite.run(load(lake))
        counts.append((merged.updated, merged.inserted))
    assert counts == [(2, 1), (2, 1)]
    convert_equality_deletes(lake, NAME, {})
    assert rows(lake) == [(1, "new"), (2, "new"), (3, "new")]


X_AGAIN = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(3, "x", StringType(), required=False),
    schema_id=1,
)
SWAPPED = Schema(
    NestedField(1, "x", LongType(), required=False),
    NestedField(2, "id", StringType(), required=False),
    schema_id=1,
)
WIDENED = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "x", StringType(), required=False),
    schema_id=1,
)
NARROW = Schema(
    NestedField(1, "id", IntegerType(), required=False),
    NestedField(2, "x", StringType(), required=False),
)
TWO = Comparison("x", "=", (pa.scalar("b"),))


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
@pytest.mark.parametrize(
    ("first", "then"), [(SCHEMA, X_AGAIN), (SCHEMA, SWAPPED), (NARROW, WIDENED)]
)
def test_other_columns_while_a_merge_runs(
    lake: IcebergCatalog, mode: str, first: Schema, then: Schema
) -> None:
    """Rows that were matched by the old columns are not written; Spark merges by the new ones."""
    make_table(lake, schema=first)
    ids = pa.array([1, 2, 3], schema_to_pyarrow(first).field("id").type)
    insert(lake, pa.table({"id": ids, "x": ["a", "b", "c"]}))
    source = pa.table({"id": ids, "x": ["new"] * 3})
    before = files(home(lake) / "data")

    def run(rewrite: FileRewrite, old: Sequence[OldFile]) -> Iterator[FileChange]:
        yield from in_threads(rewrite, old)
        evolve(lake, schema=then)
        kinds = schema_to_pyarrow(then)
        foreign = pa.table({f.name: pa.array([2]).cast(f.type) for f in kinds})
        insert(lake, foreign)

    plan, options = MergePlan(("id",), ("x",), True), {"merge_mode": mode}
    stream = lambda: iter([source.schema, *source.to_batches()])  # noqa: E731
    result = engine.merge(lake, NAME, plan, options, stream, "w", {}, run)
    assert result.spark_because == "another writer has changed the columns while the merge ran"
    assert len(rows(lake)) == 4
    assert len(files(home(lake) / "data") - before) == 1


def test_a_column_of_the_condition_goes_while_a_merge_runs(lake: IcebergCatalog) -> None:
    make_table(lake)
    plan = MergePlan(("id",), (), True, Deletes.SATISFYING, TWO)
    renamed = Schema(
        SCHEMA.fields[0], NestedField(2, "y", StringType(), required=False), schema_id=1
    )
    evolve(lake, schema=renamed)
    because = why_spark(plan, {}, False, load(lake).metadata)
    assert because == "the table has no column x"


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
@pytest.mark.parametrize("foreign_key", [2, 9])
def test_rows_get_their_ids_while_a_merge_runs(
    lake: IcebergCatalog, mode: str, foreign_key: int
) -> None:
    """Of a table that was upgraded, the first commit gives ids to all rows, which keep them."""
    make_table(lake, 2)
    insert(lake, pa.table({"id": [1, 2, 3], "x": ["a", "b", "c"]}))
    upgrade = UpgradeFormatVersionUpdate.model_validate({"format-version": 3})
    lake.commit(load(lake), (), (upgrade,))
    given: list[set[tuple[object, ...]]] = []

    def run(rewrite: FileRewrite, old: Sequence[OldFile]) -> Iterator[FileChange]:
        yield from in_threads(rewrite, old)
        if not given:
            insert(lake, pa.table({"id": [foreign_key], "x": ["theirs"]}))
            given.append(row_ids(lake))

    plan, source = MergePlan(("id",), ("x",), True), pa.table({"id": [2, 7], "x": ["new", "new"]})
    RewriteMerge(
        lake, NAME, Source(source, plan.keys), plan, lambda _: None, "w", {}, run, mode=mode
    ).run(load(lake))
    by_id = {number: row_id for number, x, row_id in given[0] if x != "theirs"}
    expected = {(1, "a", by_id[1]), (2, "new", by_id[2]), (3, "c", by_id[3])}
    assert expected <= row_ids(lake)


def row_ids(lake: IcebergCatalog) -> set[tuple[object, ...]]:
    """The live rows with their ids."""
    base = load(lake)
    target, found = WriteTarget.of(base.metadata, base.io), snapshot_files(base)
    dead = deleted_rows(base, [*found.values()])
    actual = set()
    for item in found.values():
        file = old_file(target, item, dead[item.path])
        with pq.ParquetFile(file.path) as parquet:
            for part in live_rows(parquet, file_schema(with_lineage(target.schema)), file):
                actual |= {(row["id"], row["x"], row["_row_id"]) for row in part.to_pylist()}
    return actual


@pytest.mark.slow
@pytest.mark.parametrize("key", ["id", "x"])
def test_more_text_than_an_array_takes(lake: IcebergCatalog, key: str) -> None:
    """Dictionaries make 2 GiB of text small in a file. Spark merges such files."""
    make_table(lake)
    base, count = load(lake), 290_000
    ids = WriteTarget.of(base.metadata, base.io).file_schema
    texts = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), ["t" * 8000])
    schema = pa.schema([ids.field("id"), ids.field("x").with_type(texts.type)])
    path = home(lake) / "large.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, schema, store_schema=False) as writer:
        writer.write_table(pa.table([pa.array(range(count)), texts], schema=schema))
    file = data_file(f"file://{path}", count, file_size_in_bytes=path.stat().st_size)
    commit(lake, append(file, properties={}))
    updated = "x" if key == "id" else "id"
    source = pa.table({"id": [5], "x": ["t" * 8000]})
    result = engine.merge(
        lake,
        NAME,
        MergePlan((key,), (updated,), True),
        {},
        lambda: iter([source.schema, *source.to_batches()]),
        "w",
        {},
    )
    assert result.spark_because == f"file://{path} has over 2 GiB of text in one column"


@pytest.mark.slow
def test_more_text_in_the_key_than_an_array_takes(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake, pa.table({"id": [1], "x": ["t"]}))
    batch = pa.record_batch({"id": range(200), "x": ["t" * (1 << 20)] * 200})
    result = engine.merge(
        *(lake, NAME, MergePlan(("x",), ("id",), True), {}),
        lambda: iter([batch.schema, *[batch] * 11]),
        *("w", {}),
    )
    assert result.spark_because == "the new rows have over 2 GiB of text in one column"


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_a_file_that_the_table_has_twice(lake: IcebergCatalog, mode: str) -> None:
    """Both entries would go with it. Nor can readers of deletes tell them apart."""
    make_table(lake)
    insert(lake, pa.table({"id": [1, 2], "x": ["a", "b"]}))
    (file,) = live(lake)
    commit(lake, append(file, properties={}))
    source = Source(pa.table({"id": [1], "x": ["c"]}), ["id"])
    plan = MergePlan(("id",), ("x",), True)
    merge = RewriteMerge(lake, NAME, source, plan, lambda _: None, "w", {}, mode=mode)
    with pytest.raises(
        CatalogError, match=r"s.t lists .*00000.parquet 2 times. .* Write the table again"
    ):
        merge.run(load(lake))
    assert len(rows(lake)) == 4


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_only_some_matches_are_updated(lake: IcebergCatalog, mode: str) -> None:
    """As in a snapshot: rows of the source end current versions, or are new ones."""
    make_table(lake)
    insert(lake, pa.table({"id": [1, 2, 3], "x": [None, "ended", None]}))
    source = pa.table({"id": [1, 2, 3, 4, 5], "x": ["now"] * 5})
    may_update, inserts = pa.array([True, True, False, True, False]), pa.array([False] * 4 + [True])
    plan = MergePlan(
        ("id",), ("x",), True, updates_if=Comparison("x", "is null"), has_new_keys=True
    )
    refuse = lambda _: None  # noqa: E731
    merged = RewriteMerge(
        *(lake, NAME, Source(source, plan.keys), plan, refuse, "w", {}),
        mode=mode,
        inserts=inserts,
        may_update=may_update,
    ).run(load(lake))
    assert (merged.updated, merged.inserted) == (1, 1)
    assert rows(lake) == [(1, "now"), (2, "ended"), (3, None), (5, "now")]
    again = RewriteMerge(
        *(lake, NAME, Source(source, plan.keys), plan, refuse, "v", {}),
        mode=mode,
        inserts=inserts,
        may_update=may_update,
    )
    with pytest.raises(NotByRewriting, match="the table has keys of rows that may be inserted"):
        again.run(load(lake))
