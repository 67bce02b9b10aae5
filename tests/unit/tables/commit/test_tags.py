"""Tags on the current snapshot of a table."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitStateUnknown
from dbt.adapters.iceberg_stream.tables.commit.tags import ATTEMPTS, Tag, set_tag
from tests.unit.local_tables import NAME, insert, load, make_table

ROWS = pa.table({"id": pa.array([1], pa.int64()), "x": ["a"]})


@pytest.fixture
def first(lake: IcebergCatalog) -> int:
    make_table(lake)
    return insert(lake, ROWS).snapshot.snapshot_id


def refs(lake: IcebergCatalog) -> dict[str, Any]:
    """The references as PyIceberg reads them."""
    read = lake.table(NAME).refs()
    return {
        name: (ref.snapshot_ref_type.value, ref.snapshot_id, ref.max_ref_age_ms)
        for name, ref in read.items()
        if name != "main"
    }


def test_a_tag_moves_only_if_allowed(lake: IcebergCatalog, first: int) -> None:
    assert set_tag(lake, NAME, Tag("r1", timedelta(days=2))) == first
    assert set_tag(lake, NAME, Tag("r1", timedelta(days=2))) == first
    assert refs(lake) == {"r1": ("tag", first, 172_800_000)}
    # The same snapshot is not a move, so its retention may change.
    set_tag(lake, NAME, Tag("r1"))
    second = insert(lake, ROWS).snapshot.snapshot_id
    with pytest.raises(CatalogError, match=f"has the tag `r1`, on snapshot {first}.*`replace: tr"):
        set_tag(lake, NAME, Tag("r1"))
    assert set_tag(lake, NAME, Tag("r1", replace=True)) == second
    set_tag(lake, NAME, Tag("r2"))
    assert refs(lake) == {"r1": ("tag", second, None), "r2": ("tag", second, None)}


def test_branches_stay(lake: IcebergCatalog, first: int) -> None:
    lake.table(NAME).manage_snapshots().create_branch(first, "audit").commit()
    for name in ("audit", "main"):
        with pytest.raises(CatalogError, match=f"has a branch `{name}`"):
            set_tag(lake, NAME, Tag(name, replace=True))


def test_a_table_without_rows(lake: IcebergCatalog) -> None:
    make_table(lake)
    with pytest.raises(CatalogError, match=r"s\.t has no snapshot to tag as `r1`"):
        set_tag(lake, NAME, Tag("r1"))


def test_another_writer_commits_first(
    lake: IcebergCatalog, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tag is set on what this run has built."""
    load_table, races = lake.load, iter([True])

    def load_and_lose(name: tuple[str, str], history: bool = True) -> Any:
        table = load_table(name, history)
        if next(races, False):
            monkeypatch.undo()
            insert(lake, ROWS)
        return table

    monkeypatch.setattr(lake, "load", load_and_lose)
    assert set_tag(lake, NAME, Tag("r1")) == first
    assert load(lake).metadata["current-snapshot-id"] != first
    assert refs(lake) == {"r1": ("tag", first, None)}


@pytest.mark.parametrize("is_committed", [True, False])
def test_the_catalog_does_not_answer(
    lake: IcebergCatalog, first: int, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    commit, calls = lake.commit, []

    def commit_without_answer(*arguments: Any) -> None:
        calls.append(arguments)
        if is_committed:
            commit(*arguments)
        raise CommitStateUnknown("no answer")

    monkeypatch.setattr(lake, "commit", commit_without_answer)
    if is_committed:
        assert set_tag(lake, NAME, Tag("r1")) == first
        assert len(calls) == 1
    else:
        with pytest.raises(CatalogError, match=f"was not set.*Set it on snapshot {first}"):
            set_tag(lake, NAME, Tag("r1"))
        assert len(calls) == ATTEMPTS
