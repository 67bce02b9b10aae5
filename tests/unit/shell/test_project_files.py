from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dbt.config.project import Project
from dbt.config.renderer import DbtProjectYamlRenderer

from dbt.adapters.iceberg_stream.shell.project_files import are_same, read_states


@pytest.fixture
def project(folder: Path) -> Project:
    (folder / "models" / "notes.txt").write_text("none of dbt's")
    (folder / "models" / ".orders.sql.swp").write_text("an editor's")
    return Project.from_project_root(str(folder), DbtProjectYamlRenderer(None))


def names(project: Project) -> set[str]:
    return {Path(path).name for path in read_states([project])}


def edit(path: Path) -> None:
    path.write_text(path.read_text() + " ")


def replace_in_the_same_size(path: Path) -> None:
    path.write_text(path.read_text().replace("1", "2"))


def replace_and_keep_its_time(path: Path) -> None:
    status = path.stat()
    replace_in_the_same_size(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_by_another_file(path: Path) -> None:
    shutil.copy2(path, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def rename(path: Path) -> None:
    path.rename(path.with_name("renamed.sql"))


def break_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


CHANGES = (
    *(edit, replace_in_the_same_size, replace_and_keep_its_time, replace_by_another_file),
    *(rename, Path.unlink, break_link),
)


def test_files_that_dbt_reads(project: Project) -> None:
    assert names(project) == {
        *("orders.sql", "customers.sql", "models.yml"),
        *("dbt_project.yml", "profiles.yml"),
    }


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.usefixtures("later")
def test_a_change(project: Project, folder: Path, change: Callable[[Path], Any]) -> None:
    before = read_states([project])
    assert are_same(before, read_states([project]))
    change(folder / "models" / "orders.sql")
    assert not are_same(before, read_states([project]))


def test_a_new_file(project: Project, folder: Path) -> None:
    before = read_states([project])
    (folder / "macros" / "m.sql").touch()
    assert not are_same(before, read_states([project]))


def test_files_that_dbt_does_not_read(project: Project, folder: Path) -> None:
    before = read_states([project])
    for name in ("notes.txt", ".orders.sql.swp"):
        edit(folder / "models" / name)
    assert are_same(before, read_states([project]))


def test_edits_that_a_clock_cannot_tell_apart(
    project: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "models" / "orders.sql"
    status = path.stat()
    values = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
    stat = os.stat
    same = type("Status", (), values)
    monkeypatch.setattr(os, "stat", lambda p, **k: same if str(p) == str(path) else stat(p, **k))
    before = read_states([project])
    replace_in_the_same_size(path)
    assert not are_same(before, read_states([project]))
