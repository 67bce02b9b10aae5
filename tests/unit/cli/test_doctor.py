"""`iceberg-stream doctor` on a project with a SQLite catalog."""

from __future__ import annotations

import contextvars
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyiceberg.manifest import DataFileContent
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import SetSnapshotRefUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import catalog_file
from dbt.adapters.iceberg_stream.cli import main
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from tests.unit.local_tables import data_file, load, make_table


def add_files(lake: IcebergCatalog, name: tuple[str, str], count: int, keys: int = 0) -> None:
    """Add small data files and, in a later commit, as many equality delete files."""
    equality = {"content": DataFileContent.EQUALITY_DELETES, "equality_ids": [1]}
    data = tuple(data_file(f"d{n}") for n in range(count))
    deletes = tuple(data_file(f"e{n}", keys, **equality) for n in range(count if keys else 0))
    for added in (AddedFiles(data), AddedFiles((), deletes)):
        if added.data or added.deletes:
            Committer(lake, name, Change(Operation.APPEND, (added,)), load(lake, name), ()).commit()


def call(folder: Path, *arguments: str) -> Result:
    """Run the command as a fresh process would: dbt has left nothing in its context."""
    command = ["doctor", *arguments, "--project-dir", str(folder), "--profiles-dir", str(folder)]
    result: Result = contextvars.Context().run(CliRunner().invoke, main, command)
    return result


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_tables_that_need_nothing(lake: IcebergCatalog, tmp_path: Path, version: str) -> None:
    make_table(lake, int(version))
    make_table(lake, int(version), name=("s", "empty"))
    add_files(lake, ("s", "t"), 10)
    result = call(tmp_path)
    assert result.exit_code == 0, result.output
    assert result.output == "Tables: 2 examined, 0 unreadable. Worth doing: 0. Hints: 0.\n"


def test_the_largest_gain_of_all_namespaces_comes_first(
    lake: IcebergCatalog, tmp_path: Path
) -> None:
    lake.create_namespace("marts")
    make_table(lake)
    make_table(lake, name=("marts", "orders"))
    add_files(lake, ("s", "t"), 1000)
    add_files(lake, ("marts", "orders"), 100, keys=10_000)
    result = call(tmp_path, "--target", "dev")
    assert result.exit_code == 1, result.output
    options = f"--project-dir {tmp_path} --profiles-dir {tmp_path} --target dev"
    commands = [line for line in result.output.splitlines() if "command" in line]
    assert commands == [
        f"  command  iceberg-stream maintain marts.orders --only convert_deletes {options}",
        f"  command  iceberg-stream maintain s.t --only compact {options}",
    ]
    # 100 splits × 1,000,000 keys take 30 s, and afterwards 100 position delete files 0.4 s.
    assert "gain     about 29.6 s of 30.2 s for each full scan, 100 files" in result.output
    assert "gain     about 1.5 s of 1.5 s for each full scan, 999 files" in result.output
    assert "1,000 of 1,000 data files are small." in result.output
    assert "Tables: 2 examined, 0 unreadable. Worth doing: 2. Hints: 0." in result.output


def test_printed_commands_repeat_only_given_options(
    lake: IcebergCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(lake)
    add_files(lake, ("s", "t"), 1000)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DBT_PROFILES_DIR", str(tmp_path))
    result = contextvars.Context().run(CliRunner().invoke, main, ["doctor"])
    assert "  command  iceberg-stream maintain s.t --only compact\n" in result.output


def test_one_namespace_one_table_and_a_higher_threshold(
    lake: IcebergCatalog, tmp_path: Path
) -> None:
    lake.create_namespace("marts")
    make_table(lake)
    make_table(lake, name=("marts", "orders"))
    add_files(lake, ("s", "t"), 1000)
    assert call(tmp_path, "marts").exit_code == 0
    assert call(tmp_path, "s").exit_code == 1
    assert call(tmp_path, "s.t").exit_code == 1
    assert call(tmp_path, "s.t", "--min-gain", "2").exit_code == 0
    assert call(tmp_path, "--min-gain", "-1").exit_code == 2


def test_json(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_table(lake)
    add_files(lake, ("s", "t"), 1000)
    result = call(tmp_path, "--json")
    assert result.exit_code == 1, result.output
    document = json.loads(result.output)
    (advice,) = document["advice"]
    assert (advice["table"], advice["code"], advice["urgency"]) == ("s.t", "small-files", "worth")
    assert advice["gain"] == {"seconds": 1.498, "bytes": 0, "files": 999}
    assert advice["command"].startswith("iceberg-stream maintain s.t --only compact --project-dir")
    (table,) = document["tables"]
    assert (table["table"], table["data_files"], table["rows"]) == ("s.t", 1000, 1000)
    assert (table["cost"], table["cost_after_compact"]) == (1.503, 0.005)
    assert document["unreadable"] == []


def test_a_table_that_cannot_be_read_does_not_hide_the_others(
    lake: IcebergCatalog, tmp_path: Path
) -> None:
    for name in ("broken", "gone", "t"):
        make_table(lake, name=("s", name))
        add_files(lake, ("s", name), 1000 if name == "t" else 1)
    manifest_list = load(lake, ("s", "broken")).metadata["snapshots"][0]["manifest-list"]
    Path(manifest_list.removeprefix("file://")).write_bytes(b"no Avro")
    Path(load(lake, ("s", "gone")).location.removeprefix("file://")).unlink()
    result = call(tmp_path, "s", "--min-gain", "0.5")
    assert result.exit_code == 1, result.output
    assert "s.broken: unreadable\n" in result.output
    assert "s.gone: unreadable\n" in result.output
    assert "command  iceberg-stream check s.broken --project-dir" in result.output
    assert "s.t: small-files" in result.output
    assert "Tables: 1 examined, 2 unreadable. Worth doing: 1." in result.output
    document = json.loads(call(tmp_path, "s", "--json").output)
    assert [one["table"] for one in document["unreadable"]] == ["s.broken", "s.gone"]


def test_views_are_left_out(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_table(lake)
    with closing(sqlite3.connect(catalog_file(tmp_path / "warehouse"))) as database, database:
        # As Spark creates a view; nothing reads its metadata here.
        columns = ("lake", "s", "v", "file:///v.metadata.json", None, "VIEW")
        database.execute("insert into iceberg_tables values (?, ?, ?, ?, ?, ?)", columns)
    assert "Tables: 1 examined" in call(tmp_path, "s").output
    result = call(tmp_path, "s.v")
    assert result.exit_code == 1
    assert "s.v is a view, which has no files." in result.output


def test_names_that_do_not_exist(lake: IcebergCatalog, tmp_path: Path) -> None:
    for name, message in (
        ("nowhere", "The namespace nowhere does not exist. Give a table as schema.name, or one"),
        ("s.nothing", "There is no table s.nothing in the catalog `lake`."),
        ("a.b.c", "The profile has no catalog `a`. It has lake."),
    ):
        result = call(tmp_path, name)
        assert result.exit_code != 0
        assert message in result.output, result.output


def test_other_branches_are_named(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_table(lake)
    add_files(lake, ("s", "t"), 1)
    snapshot = load(lake).metadata["current-snapshot-id"]
    update = SetSnapshotRefUpdate.model_validate(
        {"ref-name": "audit", "type": "branch", "snapshot-id": snapshot}
    )
    lake.commit(load(lake), (), (update,))
    result = call(tmp_path)
    assert "s.t: only the branch main was examined, not audit." in result.output
    assert result.exit_code == 0
