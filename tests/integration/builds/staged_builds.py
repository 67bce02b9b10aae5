"""Builds with tables of each kind, and what interrupts their publication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.update import (
    RemoveSnapshotsUpdate,
)

from dbt.adapters.iceberg_stream.builds.build import (
    Build,
    discard,
    get_build,
    list_builds,
)
from dbt.adapters.iceberg_stream.builds.names import staged_name
from dbt.adapters.iceberg_stream.builds.publish import Publication, publish
from dbt.adapters.iceberg_stream.builds.staged import REPLACES, record, stage_table
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from dbt.adapters.iceberg_stream.tables.references import references
from tests.lost_files import assert_nothing_lost

BUILD = "pr-1"


VIEW = {
    "current-version-id": 1,
    "versions": [
        {
            "version-id": 1,
            "schema-id": 0,
            "timestamp-ms": 0,
            "summary": {},
            "default-namespace": ["s"],
            "representations": [{"type": "sql", "sql": "select 1 as id", "dialect": "spark"}],
        }
    ],
    "schemas": [
        {
            "type": "struct",
            "schema-id": 0,
            "fields": [{"id": 0, "name": "id", "required": False, "type": "int"}],
        }
    ],
}


def stage_view(lake: IcebergCatalog, name: str, view: Metadata = VIEW, build: str = BUILD) -> None:
    """Stage a view as a run does, with a record of what it replaces."""
    properties = {REPLACES: record(lake.metadata(("s", name)))}
    lake.put_view(staged_name(("s", name), build), {**view, "properties": properties})


NAMES = ("appended", "replaced", "created", "unchanged")


def drop_all(lake: IcebergCatalog) -> None:
    for name, _ in lake.relations("s"):
        drop_table(lake, ("s", name))


class Interrupted(BaseException):
    """A process that ends here."""


class Interruption:
    """A backend whose process ends before or after one of its calls, counted from 0."""

    def __init__(self, backend: Any, call: int, after: bool) -> None:
        self._backend, self._call, self._after = backend, call, after
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._backend, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **options: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            if number >= self._call and not (self._after and number == self._call):
                raise Interrupted
            result = method(*arguments, **options)
            if number == self._call:
                raise Interrupted
            return result

        return call


def write(lake: IcebergCatalog, name: str, ids: Sequence[int], mode: Mode, **more: Any) -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    ingest(lake, ("s", name), rows.to_reader(), mode, **more)


def widened(lake: IcebergCatalog, name: str, ids: Sequence[int]) -> None:
    """Replace rows and columns."""
    rows = pa.table({"id": pa.array(ids, pa.int64()), "text": [str(i) for i in ids]})
    ingest(lake, ("s", name), rows.to_reader(), Mode.REPLACE)


def read(lake: IcebergCatalog, name: str) -> list[tuple[Any, ...]] | None:
    """Rows of a table, by PyIceberg; None if there is no table."""
    if dict(lake.relations("s")).get(name) is None:
        return None
    rows = lake.table(("s", name)).scan().to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def state(lake: IcebergCatalog) -> list[Any]:
    return [read(lake, name) for name in NAMES]


def staged_build(lake: IcebergCatalog) -> Build:
    """A build that appends to a table, replaces one, creates one and leaves one as it is."""
    for name in ("appended", "replaced", "unchanged"):
        write(lake, name, [1, 2], Mode.REPLACE)
    for name in NAMES:
        stage_table(lake, ("s", name), BUILD, {})
    write(lake, staged("appended"), [3], Mode.APPEND)
    write(lake, staged("appended"), [4], Mode.APPEND)
    widened(lake, staged("replaced"), [7])
    write(lake, staged("created"), [8], Mode.REPLACE)
    return get_build(lake, BUILD)


def staged(name: str) -> str:
    return staged_name(("s", name), BUILD)[1]


OLD = [[(1,), (2,)], [(1,), (2,)], None, [(1,), (2,)]]


NEW = [[(1,), (2,), (3,), (4,)], [(7, "7")], [(8,)], [(1,), (2,)]]


# A server creates tables before the transaction, without rows.
CREATED = [*OLD[:2], [], OLD[3]]


def publish_all(lake: IcebergCatalog) -> Publication:
    return publish(lake, BUILD, get_build(lake, BUILD).relations.items())


def discard_all(lake: IcebergCatalog) -> None:
    discard(lake, get_build(lake, BUILD))


# How the next commands end builds whose publications were interrupted, in turn, with each catalog.
EACH_ENDING = pytest.mark.parametrize(
    "endings, lake",
    [
        ((publish_all, discard_all), "sqlite"),
        ((publish_all,), "rest"),
        pytest.param((discard_all, publish_all), "sqlite", marks=pytest.mark.slow),
        pytest.param((discard_all,), "rest", marks=pytest.mark.slow),
    ],
    indirect=["lake"],
)


def assert_clean(lake: IcebergCatalog, names: Sequence[str] = NAMES) -> None:
    """Nothing of a build is left, and the tables are sound."""
    assert list_builds(lake) == []
    assert_nothing_lost(lake, ["s"])
    for name in names:
        table = lake.load(("s", name))
        assert table is not None
        assert list(check_table(table, data=True).findings) == []
        assert not [k for k in table.metadata.get("properties", {}) if "iceberg-stream" in k]
        assert "gc.enabled" not in table.metadata.get("properties", {})


def fail(
    lake: IcebergCatalog,
    monkeypatch: pytest.MonkeyPatch,
    errors: Sequence[Exception],
    committed: bool,
) -> None:
    """Have the first commits fail, before or after they were made."""
    failures = iter(errors)
    for method in ("commit", "commit_all"):
        original = getattr(lake._backend, method)

        def commit(*arguments: Any, original: Any = original) -> None:
            failure = next(failures, None)
            if committed or failure is None:
                original(*arguments)
            if failure is not None:
                raise failure

        monkeypatch.setattr(lake._backend, method, commit)


def expire_old(lake: IcebergCatalog, name: str) -> None:
    """Expire all snapshots but the current one with their files, as Spark does."""
    table: Any = lake.load(("s", name))
    current = table.metadata["current-snapshot-id"]
    old = [s for s in table.metadata["snapshots"] if s["snapshot-id"] != current]
    kept = set(references(replace(table, metadata=_only(table.metadata, current))))
    gone = set(references(table)) - kept - {table.location}
    gone -= {entry["metadata-file"] for entry in table.metadata.get("metadata-log") or []}
    ids = [s["snapshot-id"] for s in old]
    lake.commit(table, (), (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids}),))
    for location in gone:
        table.io.delete(location)


def _only(metadata: Any, snapshot_id: int) -> Any:
    snapshots = [s for s in metadata["snapshots"] if s["snapshot-id"] == snapshot_id]
    return {**metadata, "snapshots": snapshots}


def killed_after_the_commit(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, relations: Any
) -> None:
    """A `publish` that ends after the tables are published."""

    def end(*_: Any) -> None:
        raise Interrupted

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr("dbt.adapters.iceberg_stream.builds.publish._forget_relations", end)
        publish(lake, BUILD, relations)


def before_call(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, method: str, action: Callable[[], Any]
) -> None:
    """Have another process act before the next call of a method of the catalog."""
    original = getattr(lake._backend, method)

    def call(*arguments: Any) -> Any:
        monkeypatch.undo()
        action()
        return original(*arguments)

    monkeypatch.setattr(lake._backend, method, call)
