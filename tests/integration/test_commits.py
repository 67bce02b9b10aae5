"""Many writers at once, and writers that are killed: the table is the old or the new one."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitStateUnknown
from dbt.adapters.iceberg_stream.cli import main
from dbt.adapters.iceberg_stream.maintenance.orphans import remove_orphans, unreferenced_files
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.integration.tables import LATER
from tests.integration.writers import open_catalog, start
from tests.servers.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.servers.rest_catalog import RestCatalog, rest_catalog

WRITERS, TIMES = 8, 15
ROW = pa.table({"writer": [-1], "n": [0]})


@pytest.fixture(scope="module", params=["sqlite", "rest"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("commits")
    if request.param == "sqlite":
        yield {"folder": str(folder)}
        return
    with rest_catalog(folder) as server:
        yield {"uri": server.uri, "token": server.token("wanda")}


@pytest.fixture(scope="module")
def lake(place: dict[str, str]) -> Iterator[IcebergCatalog]:
    lake = open_catalog(place)
    lake.create_namespace("s")
    yield lake
    lake.close()


def exit_code(process: BaseProcess, seconds: float = 60) -> int | None:
    """How a writer ended; None if it has not."""
    process.join(seconds)
    return process.exitcode


def rows(lake: IcebergCatalog, name: str) -> list[tuple[int, int]]:
    actual = lake.table(("s", name)).scan().to_arrow().to_pylist()
    return sorted((row["writer"], row["n"]) for row in actual)


@pytest.mark.parametrize(
    "place", [pytest.param("sqlite", marks=pytest.mark.slow), "rest"], indirect=True
)
def test_eight_writers_append(lake: IcebergCatalog, place: dict[str, str]) -> None:
    ingest(lake, ("s", "shared"), ROW.slice(0, 0).to_reader(), Mode.CREATE)
    before = len(lake.load(("s", "shared")).metadata["snapshots"])
    running = [start(place, table="shared", times=TIMES, writer=n) for n in range(WRITERS)]
    for process in running:
        assert exit_code(process, 240) == 0
    assert rows(lake, "shared") == [(w, n) for w in range(WRITERS) for n in range(TIMES)]
    metadata = lake.load(("s", "shared")).metadata
    assert len(metadata["snapshots"]) - before == WRITERS * TIMES
    assert metadata["last-sequence-number"] == WRITERS * TIMES + before
    folder = Path(metadata["location"].removeprefix("file://"))
    # What lost attempts wrote is gone: a manifest list for each snapshot, no more.
    assert len(list(folder.rglob("snap-*.avro"))) == WRITERS * TIMES + before
    assert len(list(folder.rglob("*.parquet"))) == WRITERS * TIMES


# What each stage leaves behind: data files, and manifests with their list.
LEFT = {"before files": (0, 0), "after files": (1, 0), "before swap": (1, 2), "after swap": (0, 0)}


@pytest.mark.parametrize(
    ("place", "mode"),
    [
        ("sqlite", "append"),
        ("sqlite", "replace"),
        ("sqlite", "create"),
        ("sqlite", "merge"),
        ("rest", "replace"),
        ("rest", "merge"),
    ],
    indirect=["place"],
)
@pytest.mark.parametrize("stage", LEFT)
@pytest.mark.variants(8)
def test_a_writer_that_is_killed(
    lake: IcebergCatalog, place: dict[str, str], stage: str, mode: str
) -> None:
    name = f"killed_{mode}_{stage.replace(' ', '_')}"
    if mode != "create":
        ingest(lake, ("s", name), ROW.to_reader(), Mode.CREATE)
    process = start(place, table=name, mode=mode, die=stage)
    assert exit_code(process) == -signal.SIGKILL
    new = {"append": [(-1, 0), (0, 0)], "merge": [(-1, 7), (0, 7)]}.get(mode, [(0, 0)])
    if stage == "after swap":
        assert rows(lake, name) == new
    elif mode == "create":
        assert lake.load(("s", name)) is None
    else:
        assert rows(lake, name) == [(-1, 0)]
    if stage != "after swap":
        again = start(place, table=name, mode=mode)
        assert exit_code(again) == 0
    assert rows(lake, name) == new
    table = lake.load(("s", name))
    orphans = unreferenced_files(table, LATER)
    kinds = [orphan.path.rsplit(".", 1)[-1] for orphan in orphans]
    data_files, metadata_files = LEFT[stage]
    if stage == "before swap" and mode in ("replace", "merge"):
        metadata_files += 1  # the manifest that says which files the snapshot deleted
    if stage != "after swap" and mode == "merge":
        data_files += 1  # the file that was rewritten, before those of new rows
    assert (kinds.count("parquet"), kinds.count("avro")) == (data_files, metadata_files)
    assert remove_orphans(table, orphans) == len(orphans)
    assert unreferenced_files(table, LATER) == []
    assert rows(lake, name) == new


def test_the_command_for_orphans(tmp_path: Path) -> None:
    warehouse = tmp_path / "lakehouse"
    lake = open_catalog({"folder": str(warehouse)})
    lake.create_namespace("s")
    ingest(lake, ("s", "t"), ROW.to_reader(), Mode.CREATE)
    lost = warehouse / "s" / "t" / "data" / "lost.parquet"
    lost.write_bytes(b"x" * 1234)
    (tmp_path / "dbt_project.yml").write_text("{name: p, profile: p}")
    profile = {"type": "iceberg_stream", "schema": "s", "warehouse": str(warehouse)}
    profiles = {"p": {"target": "dev", "outputs": {"dev": profile}}}
    (tmp_path / "profiles.yml").write_text(json.dumps(profiles))

    def orphans(*arguments: str) -> str:
        actual = CliRunner().invoke(main, ["orphans", *arguments, "--project-dir", str(tmp_path)])
        return actual.output

    assert "0 orphans" in orphans("s.t")
    assert "1 orphans, 1,234 bytes" in orphans("s.t", "--older-than", "0")
    assert "1 removed" in orphans("s.t", "--older-than", "0", "--remove")
    assert not lost.exists()
    assert "--remove and --restore cannot be combined" in orphans("s.t", "--remove", "--restore")
    assert "1 restored." in orphans("s.t", "--restore")
    assert lost.stat().st_size == 1234
    orphans("s.t", "--older-than", "0", "--remove")
    deleted = orphans("s.t", "--older-than", "0", "--remove", "--keep-removed", "0")
    assert "0 removed. 1 removed earlier were deleted." in deleted
    assert "0 restored." in orphans("s.t", "--restore") and not lost.exists()
    assert rows(lake, "t") == [(-1, 0)]
    assert "There is no table s.none in the catalog `lake`" in orphans("s.none")
    assert "must have the form schema.name" in orphans("none")
    assert "does not have a target named 'other'" in orphans("s.t", "--target", "other")


class TestLostAnswers:
    """A catalog behind a proxy that loses its answers to commits."""

    @pytest.fixture(scope="class")
    def proxy(self, catalog: RestCatalog) -> Iterator[FaultProxy]:
        with fault_proxy(catalog.port) as running:
            yield running

    @pytest.fixture(scope="class")
    def lake(self, catalog: RestCatalog, proxy: FaultProxy) -> Iterator[IcebergCatalog]:
        lake = open_catalog({"uri": proxy.uri, "token": catalog.token("wanda")})
        lake.create_namespace("s")
        yield lake
        lake.close()

    @pytest.fixture
    def name(self, lake: IcebergCatalog, proxy: FaultProxy) -> Iterator[str]:
        made = f"t{uuid.uuid4().hex[:8]}"
        few = {"commit.retry.num-retries": "2"}
        ingest(lake, ("s", made), ROW.to_reader(), Mode.CREATE, properties=few)
        yield made
        proxy.faults.clear()

    def lose(self, proxy: FaultProxy, name: str, **fault: Any) -> None:
        def commits(method: str, path: str) -> bool:
            return method == "POST" and path.endswith(f"/tables/{name}")

        proxy.faults = [Fault(commits, **fault)]

    @pytest.mark.parametrize("status", [500, 502, 503, 504, 520])
    def test_of_a_commit_that_was_made(
        self, lake: IcebergCatalog, proxy: FaultProxy, name: str, status: int
    ) -> None:
        self.lose(proxy, name, status=status, forwards=True, times=1)
        done = ingest(lake, ("s", name), ROW.to_reader())
        table = lake.load(("s", name))
        assert [s["snapshot-id"] for s in table.metadata["snapshots"]][1:] == [done.snapshot_id]
        assert rows(lake, name) == [(-1, 0), (-1, 0)]
        assert unreferenced_files(table, LATER) == []

    @pytest.mark.parametrize("status", [429, 500, 520])
    def test_of_one_that_was_not(
        self, lake: IcebergCatalog, proxy: FaultProxy, name: str, status: int
    ) -> None:
        self.lose(proxy, name, status=status, times=1)
        ingest(lake, ("s", name), ROW.to_reader())
        assert rows(lake, name) == [(-1, 0), (-1, 0)]

    def test_each_time(self, lake: IcebergCatalog, proxy: FaultProxy, name: str) -> None:
        self.lose(proxy, name, status=500)
        with pytest.raises(CommitStateUnknown, match="did not confirm the commit"):
            ingest(lake, ("s", name), ROW.to_reader())
        proxy.faults.clear()
        table = lake.load(("s", name))
        assert rows(lake, name) == [(-1, 0)]
        # It may still have come: its files are kept.
        left = [orphan.path.rsplit(".", 1)[-1] for orphan in unreferenced_files(table, LATER)]
        assert left.count("parquet") == 1

    def test_and_the_catalog_is_gone(
        self, lake: IcebergCatalog, proxy: FaultProxy, name: str
    ) -> None:
        self.lose(proxy, name, status=500, forwards=True, times=1)
        lost = proxy.faults[0]
        proxy.faults.append(Fault(lambda method, path: method == "GET" and not lost.times, 500))
        with pytest.raises(CommitStateUnknown, match="The commit state is unknown"):
            ingest(lake, ("s", name), ROW.to_reader())
        proxy.faults.clear()
        # It was: and what it refers to is there.
        assert rows(lake, name) == [(-1, 0), (-1, 0)]

    def test_a_refusal_leaves_no_file(
        self, lake: IcebergCatalog, proxy: FaultProxy, name: str
    ) -> None:
        self.lose(proxy, name, status=403)
        with pytest.raises(CatalogError, match="refused to commit"):
            ingest(lake, ("s", name), ROW.to_reader())
        proxy.faults.clear()
        assert unreferenced_files(lake.load(("s", name)), LATER) == []
