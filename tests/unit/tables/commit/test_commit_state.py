"""Commits whose answer is lost, or that are refused: what is made again, found, removed, left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import (
    CatalogError,
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.catalog.metadata import SnapshotSummary
from dbt.adapters.iceberg_stream.catalog.tables import TableCommit
from dbt.adapters.iceberg_stream.errors.spark import COMMIT_STATE_UNKNOWN, StatementError
from dbt.adapters.iceberg_stream.tables.commit import commit_state
from dbt.adapters.iceberg_stream.tables.commit import committer as under_test
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, Validation, append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer, commit_together
from dbt.adapters.iceberg_stream.tables.commit.errors import ValidationFailed
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome, find_outcome
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import WRITE_ID
from tests.unit.local_tables import (
    NAME,
    data_file,
    insert,
    live,
    load,
    make_table,
    rows,
    set_metadata,
    write,
)

A, B = (pa.table({"id": [n], "x": [text]}) for n, text in ((1, "a"), (2, "b")))
OTHER = ("s", "u")
# What becomes of a commit.
LOST, UNDONE, CONFLICT, REFUSED, DONE = "lost", "undone", "conflict", "refused", "done"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(under_test, "LONGEST_WAIT", 0.0)


class Unsure:
    """A catalog whose commits end as is planned; then it may be away for a while."""

    def __init__(self, lake: IcebergCatalog, *plan: str, away: bool = False) -> None:
        self._lake, self._plan, self._away = lake, list(plan), away
        self.commits = 0

    def commit_all(self, commits: Sequence[TableCommit]) -> None:
        self.commits += 1
        step = self._plan.pop(0) if self._plan else DONE
        if step in (LOST, DONE):
            for one in commits:
                self._lake.commit(one.base, one.requirements, one.updates)
        if step in (LOST, UNDONE):
            raise CommitStateUnknown("the answer was lost")
        if step == CONFLICT:
            raise CommitConflict("others were faster")
        if step == REFUSED:
            raise CatalogError("not allowed")

    def load(self, name: tuple[str, str]) -> Any:
        if self._away and self.commits:
            raise CatalogError("the catalog is away")
        return self._lake.load(name)


def appending(
    lake: IcebergCatalog, unsure: Unsure, data: pa.Table = A, name: tuple[str, str] = NAME
) -> Committer:
    change = append(*write(lake, data, name), properties={})
    return Committer(unsure, name, change, load(lake, name))  # type: ignore[arg-type]


def files(folder: Path, kind: str) -> int:
    return len(list(folder.rglob(f"*.{kind}")))


@pytest.mark.parametrize(
    ("plan", "attempts"),
    [
        ([DONE], 1),
        ([LOST], 2),
        ([UNDONE], 2),
        ([CONFLICT, DONE], 2),
        ([CONFLICT, CONFLICT, LOST], 4),
        ([UNDONE, UNDONE, LOST], 4),
        ([UNDONE, CONFLICT, DONE], 3),
    ],
)
def test_rows_are_there_once(
    lake: IcebergCatalog, tmp_path: Path, plan: list[str], attempts: int
) -> None:
    make_table(lake)
    committer = appending(lake, Unsure(lake, *plan))
    done = committer.commit()
    assert rows(lake) == [(1, "a")]
    (snapshot,) = load(lake).metadata["snapshots"]
    assert (done.snapshot.snapshot_id, done.attempts) == (snapshot["snapshot-id"], attempts)
    if UNDONE not in plan:
        # A manifest and its list; those of other attempts are gone.
        assert files(tmp_path, "avro") == 2


def test_another_writer_after_the_lost_answer(lake: IcebergCatalog) -> None:
    make_table(lake)

    class Then(Unsure):
        def commit_all(self, commits: Sequence[TableCommit]) -> None:
            try:
                super().commit_all(commits)
            finally:
                insert(lake, B)

    done = appending(lake, Then(lake, LOST)).commit()
    assert rows(lake) == [(1, "a"), (2, "b")]
    assert done.snapshot.snapshot_id == load(lake).metadata["snapshots"][0]["snapshot-id"]


class Short(Unsure):
    """Another writer follows each commit, and only its snapshot is shown from then on."""

    def commit_all(self, commits: Sequence[TableCommit]) -> None:
        try:
            super().commit_all(commits)
        finally:
            if self.commits == 1:
                insert(self._lake, B)
                newest = load(self._lake).metadata["snapshots"][-1:]
                set_metadata(self._lake, snapshots=newest, snapshot_log=[])


class TestCatalogThatShowsTheNewestSnapshotOnly:
    @pytest.mark.parametrize("step", [LOST, UNDONE])
    def test_rows_are_there_once(self, lake: IcebergCatalog, step: str) -> None:
        make_table(lake)
        unsure = Short(lake, step)
        appending(lake, unsure).commit()
        assert rows(lake) == [(1, "a"), (2, "b")]
        assert unsure.commits == (1 if step == LOST else 2)

    def test_files_of_one_that_was_refused_and_done(
        self, lake: IcebergCatalog, tmp_path: Path
    ) -> None:
        make_table(lake, name=OTHER)
        make_table(lake)

        class Half(Short):
            def commit_all(self, commits: Sequence[TableCommit]) -> None:
                lake.commit(commits[0].base, commits[0].requirements, commits[0].updates)
                super().commit_all(commits)

        unsure = Half(lake, REFUSED)
        with pytest.raises(CatalogError, match="not allowed"):
            commit_together([appending(lake, unsure), appending(lake, unsure, B, OTHER)])
        assert (rows(lake), rows(lake, OTHER)) == ([(1, "a"), (2, "b")], [])
        assert files(tmp_path, "parquet") == 2

    @pytest.mark.parametrize("step", [LOST, UNDONE])
    def test_a_change_without_new_files(self, lake: IcebergCatalog, step: str) -> None:
        make_table(lake)
        insert(lake, A)
        unsure = Short(lake, step)
        change = Change(Operation.DELETE, removed=tuple(live(lake)))
        committer = Committer(unsure, NAME, change, load(lake))  # type: ignore[arg-type]
        if step == UNDONE:
            committer.commit()
        else:
            # No file tells whose snapshot it was.
            with pytest.raises(CommitStateUnknown, match="removed or rewrote 1 of the files"):
                committer.commit()
        assert rows(lake) == [(2, "b")]


def test_a_table_that_is_made(lake: IcebergCatalog) -> None:
    from tests.unit.local_tables import SCHEMA, UNPARTITIONED_PARTITION_SPEC

    staged = lake.stage(NAME, SCHEMA, UNPARTITIONED_PARTITION_SPEC, {"format-version": "2"})
    done = Committer(
        Unsure(lake, LOST),
        NAME,
        append(data_file("a"), properties={}),
        staged,  # type: ignore[arg-type]
    ).commit()
    assert done.attempts == 2
    assert len(load(lake).metadata["snapshots"]) == 1


def test_a_table_that_somebody_else_has_made(lake: IcebergCatalog) -> None:
    from tests.unit.local_tables import SCHEMA, UNPARTITIONED_PARTITION_SPEC

    staged = lake.stage(NAME, SCHEMA, UNPARTITIONED_PARTITION_SPEC, {"format-version": "2"})
    make_table(lake)
    insert(lake, B)
    with pytest.raises(CatalogError, match=r"Another writer created s\.t"):
        Committer(lake, NAME, append(data_file("a"), properties={}), staged).commit()
    assert rows(lake) == [(2, "b")]


@pytest.mark.parametrize("step", [DONE, CONFLICT, REFUSED, UNDONE])
def test_a_commit_to_this_base_only(lake: IcebergCatalog, tmp_path: Path, step: str) -> None:
    make_table(lake)
    unsure = Unsure(lake, step)
    committer = appending(lake, unsure)
    errors = {CONFLICT: CommitConflict, REFUSED: CatalogError, UNDONE: CommitStateUnknown}
    if step == DONE:
        assert committer.commit_once().attempts == 1
        assert rows(lake) == [(1, "a")]
    else:
        with pytest.raises(errors[step]):
            committer.commit_once()
        assert rows(lake) == []
    assert unsure.commits == 1
    # Where the answer was lost, a snapshot may name them.
    assert files(tmp_path, "parquet") == (1 if step in (DONE, UNDONE) else 0)


@pytest.mark.parametrize("plan", [[LOST] * 9, [UNDONE] * 9])
def test_a_catalog_that_stays_away(lake: IcebergCatalog, tmp_path: Path, plan: list[str]) -> None:
    make_table(lake, properties={"commit.retry.num-retries": "3"})
    committer = appending(lake, Unsure(lake, *plan, away=True))
    with pytest.raises(CommitStateUnknown, match="The commit state is unknown") as raised:
        committer.commit()
    assert f"s.t has the snapshot {committer._producer.snapshot_id}" in str(raised.value)
    # Nothing is removed: a snapshot may name it.
    assert (files(tmp_path, "parquet"), files(tmp_path, "avro")) == (1, 2)


def test_the_last_answer_is_lost(lake: IcebergCatalog) -> None:
    make_table(lake, properties={"commit.retry.num-retries": "2"})
    committer = appending(lake, Unsure(lake, UNDONE, UNDONE, LOST))
    assert committer.commit().snapshot.snapshot_id == committer.snapshot_id
    assert rows(lake) == [(1, "a")]


def test_no_commit_arrives(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_table(lake, properties={"commit.retry.num-retries": "2"})
    committer = appending(lake, Unsure(lake, *[UNDONE] * 9))
    absent = f"So far, s.t has no snapshot {committer.snapshot_id} of this"
    with pytest.raises(CommitStateUnknown, match=absent) as raised:
        committer.commit()
    assert "nothing of it is visible. If the write appends rows, look once" in str(raised.value)
    assert rows(lake) == []
    # One may arrive late.
    assert files(tmp_path, "parquet") == 1


def test_one_of_two_tables_is_committed(lake: IcebergCatalog) -> None:
    for name in (NAME, OTHER):
        make_table(lake, name=name, properties={"commit.retry.num-retries": "0"})

    class Half(Unsure):
        def commit_all(self, commits: Sequence[TableCommit]) -> None:
            super().commit_all(commits[:1])

    unsure = Half(lake, LOST)
    parts = [appending(lake, unsure), appending(lake, unsure, B, OTHER)]
    absent = f"So far, s.u has no snapshot {parts[1].snapshot_id} of this write. If"
    with pytest.raises(CommitStateUnknown, match=absent):
        commit_together(parts)


def test_a_lost_answer_and_then_a_refusal(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_table(lake)
    with pytest.raises(CommitStateUnknown, match="not allowed"):
        appending(lake, Unsure(lake, UNDONE, REFUSED)).commit()
    assert files(tmp_path, "parquet") == 1


def test_a_refusal_leaves_no_file(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_table(lake)
    with pytest.raises(CatalogError, match="not allowed"):
        appending(lake, Unsure(lake, REFUSED)).commit()
    assert (files(tmp_path, "parquet"), files(tmp_path, "avro")) == (0, 0)


@pytest.mark.parametrize(("retries", "attempts"), [("0", 1), ("2", 3), (None, 30)])
def test_conflicts_end(
    lake: IcebergCatalog, tmp_path: Path, retries: str | None, attempts: int
) -> None:
    properties = {} if retries is None else {"commit.retry.num-retries": retries}
    make_table(lake, properties=properties)
    unsure = Unsure(lake, *[CONFLICT] * 40)
    with pytest.raises(CommitConflict, match="others were faster"):
        appending(lake, unsure).commit()
    assert unsure.commits == attempts
    assert (files(tmp_path, "parquet"), files(tmp_path, "avro")) == (0, 0)


def test_what_is_no_longer_right_keeps_its_files(lake: IcebergCatalog, tmp_path: Path) -> None:
    base = make_table(lake)
    change = Change(
        Operation.OVERWRITE,
        (AddedFiles(tuple(write(lake, A))),),
        validation=Validation(None, lambda file: True),
    )
    insert(lake, B)
    before = files(tmp_path, "avro")
    with pytest.raises(ValidationFailed):
        Committer(lake, NAME, change, base).commit()
    assert files(tmp_path, "parquet") == 2
    assert files(tmp_path, "avro") == before


def test_a_check_that_refuses(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_table(lake)

    def check(metadata: Any) -> None:
        raise CatalogError(f"not in {metadata['table-uuid']}")

    committer = appending(lake, Unsure(lake))
    committer.check = check
    with pytest.raises(CatalogError, match="not in "):
        committer.commit()
    assert files(tmp_path, "parquet") == 0


class TestTogether:
    def parts(self, lake: IcebergCatalog, unsure: Unsure) -> list[Committer]:
        make_table(lake, name=OTHER)
        make_table(lake)
        return [appending(lake, unsure), appending(lake, unsure, B, OTHER)]

    @pytest.mark.parametrize("plan", [[DONE], [LOST], [UNDONE], [CONFLICT]])
    def test_all_of_them(self, lake: IcebergCatalog, plan: list[str]) -> None:
        unsure = Unsure(lake, *plan)
        first, second = commit_together(self.parts(lake, unsure))
        assert (rows(lake), rows(lake, OTHER)) == ([(1, "a")], [(2, "b")])
        actual = [
            load(lake, name).metadata["snapshots"][0]["snapshot-id"] for name in (NAME, OTHER)
        ]
        assert [first.snapshot.snapshot_id, second.snapshot.snapshot_id] == actual

    def test_a_server_that_does_one_after_the_other(self, lake: IcebergCatalog) -> None:
        class Killed(Unsure):
            def commit_all(self, commits: Sequence[TableCommit]) -> None:
                self.commits += 1
                lake.commit(commits[0].base, commits[0].requirements, commits[0].updates)
                if self.commits == 1:
                    raise CommitStateUnknown("killed")

        commit_together(self.parts(lake, Killed(lake)))
        assert (rows(lake), rows(lake, OTHER)) == ([(1, "a")], [(2, "b")])

    @pytest.mark.parametrize("step", [REFUSED, CONFLICT])
    def test_a_server_that_does_not_keep_its_word(
        self, lake: IcebergCatalog, tmp_path: Path, step: str
    ) -> None:
        """It refuses all, but has committed one: its files must stay."""

        class Half(Unsure):
            def commit_all(self, commits: Sequence[TableCommit]) -> None:
                if not self.commits:
                    lake.commit(commits[0].base, commits[0].requirements, commits[0].updates)
                super().commit_all(commits)

        parts = self.parts(lake, Half(lake, step))
        if step == CONFLICT:
            commit_together(parts)
            assert (rows(lake), rows(lake, OTHER)) == ([(1, "a")], [(2, "b")])
            return
        with pytest.raises(CatalogError, match="not allowed"):
            commit_together(parts)
        assert (rows(lake), rows(lake, OTHER)) == ([(1, "a")], [])
        assert files(tmp_path, "parquet") == 1

    def test_nobody_can_tell(self, lake: IcebergCatalog, tmp_path: Path) -> None:
        with pytest.raises(
            CommitStateUnknown, match="cannot be read after the catalog refused its commit"
        ):
            commit_together(self.parts(lake, Unsure(lake, REFUSED, away=True)))
        assert files(tmp_path, "parquet") == 2

    def test_a_refusal_leaves_no_file(self, lake: IcebergCatalog, tmp_path: Path) -> None:
        with pytest.raises(CatalogError, match="not allowed"):
            commit_together(self.parts(lake, Unsure(lake, REFUSED)))
        assert (files(tmp_path, "parquet"), files(tmp_path, "avro")) == (0, 0)


class TestStatements:
    """A statement of Spark whose answer was lost."""

    ERROR = f"Connection reset\n{COMMIT_STATE_UNKNOWN}: and so on"

    @pytest.fixture(autouse=True)
    def pauses(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        slept: list[float] = []
        monkeypatch.setattr(commit_state.time, "sleep", slept.append)
        return slept

    @pytest.mark.parametrize("look", [1, 2, 4])
    def test_it_shows_after_a_while(self, look: int, pauses: list[float]) -> None:
        others = SnapshotSummary(1, 1, {WRITE_ID: "other"})
        ours = SnapshotSummary(7, 1, {WRITE_ID: "w", "operation": "append", "added-records": "3"})

        def find() -> Outcome | None:
            return find_outcome([others, ours] if len(pauses) >= look else [others], "w")

        actual = commit_state.resolve(StatementError(self.ERROR), find, "w")
        assert (actual.snapshot_id, actual.rows_affected) == (7, 3)
        assert len(pauses) == look
        assert pauses[0] == 0

    @pytest.mark.parametrize("gone", [True, False])
    def test_it_does_not_show(self, gone: bool, pauses: list[float]) -> None:
        error = StatementError(self.ERROR, engine_gone=gone)
        with pytest.raises(StatementError, match="no snapshot of this write so far") as raised:
            commit_state.resolve(error, lambda: None, "w")
        assert str(raised.value).startswith("Connection reset\nThe table has")
        assert raised.value.engine_gone is gone
        assert ("cancels it" in str(raised.value)) is gone
        assert (f"{WRITE_ID} = w" in str(raised.value)) is not gone
        assert pauses == [0, 1, 2, 2]

    @pytest.mark.parametrize("gone", [True, False])
    def test_the_catalog_is_away(self, gone: bool) -> None:
        def find() -> Outcome | None:
            raise CatalogError("The catalog is away.")

        with pytest.raises(StatementError, match=r"is unknown(?s:.*)The catalog is away") as raised:
            commit_state.resolve(StatementError(self.ERROR, engine_gone=gone), find, "w")
        assert raised.value.engine_gone is gone
