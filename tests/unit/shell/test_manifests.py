"""Commands see each change of the project, and parse it only then."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from dbt.contracts.graph.manifest import Manifest
from dbt.parser.manifest import ManifestLoader

from dbt.adapters.iceberg_stream.shell.commands import Commands
from tests.unit.shell.conftest import write_profile

Listing = Callable[..., list[str]]


@pytest.fixture
def commands(folder: Path) -> Commands:
    return Commands()


@pytest.fixture
def listing(commands: Commands, capsys: pytest.CaptureFixture[str]) -> Listing:
    """Runs a command that succeeds, and returns the lines that it prints."""

    def listing(*arguments: str) -> list[str]:
        capsys.readouterr()
        assert commands.run(["--quiet", *(arguments or ("ls", "--output", "name"))]) == 0
        return capsys.readouterr().out.splitlines()

    return listing


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has an entry for each time that dbt parses the project."""
    entries: list[str] = []
    load = ManifestLoader.load

    def counted(self: ManifestLoader) -> Manifest:
        entries.append("")
        return load(self)

    monkeypatch.setattr(ManifestLoader, "load", counted)
    return entries


def compiled(listing: Listing, *options: str) -> str:
    return "\n".join(listing("compile", "--no-introspect", "-s", "orders", *options))


def test_an_unchanged_project_is_not_parsed_again(listing: Listing, parses: list[str]) -> None:
    before = listing()
    assert listing() == listing("ls", "--output", "name", "--resource-type", "all") == before
    assert len(parses) == 1


def test_an_edited_model(listing: Listing, folder: Path) -> None:
    assert "select 1 as id" in compiled(listing)
    (folder / "models" / "orders.sql").write_text("select 7 as id")
    assert "select 7 as id" in compiled(listing)


def test_a_new_and_a_removed_model(listing: Listing, folder: Path) -> None:
    before = listing()
    path = folder / "models" / "new.sql"
    path.write_text("select 1 as id")
    assert set(listing()) - set(before) == {"new"}
    path.unlink()
    assert listing() == before


def test_edited_properties(listing: Listing, folder: Path) -> None:
    assert "unique_orders_id" in listing()
    path = folder / "models" / "models.yml"
    path.write_text(path.read_text().replace("unique", "not_null"))
    assert {"not_null_orders_id"} == {name for name in listing() if name.endswith("_id")}


def test_a_new_and_an_edited_macro(listing: Listing, folder: Path) -> None:
    (folder / "macros" / "m.sql").write_text("{% macro first() %}1{% endmacro %}")
    (folder / "models" / "orders.sql").write_text("select {{ first() }} as id")
    assert "select 1 as id" in compiled(listing)
    (folder / "macros" / "m.sql").write_text("{% macro first() %}2{% endmacro %}")
    assert "select 2 as id" in compiled(listing)


def test_an_edited_project(listing: Listing, folder: Path) -> None:
    before = listing()
    path = folder / "dbt_project.yml"
    project = json.loads(path.read_text())
    path.write_text(json.dumps({**project, "models": {"p": {"customers": {"+enabled": False}}}}))
    assert set(before) - set(listing()) == {"customers"}


def test_an_edited_profile(listing: Listing, folder: Path, parses: list[str]) -> None:
    (folder / "models" / "orders.sql").write_text("select '{{ target.schema }}' as id")
    assert "select 's' as id" in compiled(listing)
    write_profile(folder, schema="other")
    assert "select 'other' as id" in compiled(listing)
    assert len(parses) == 2


def test_an_environment_variable(
    listing: Listing, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "{{ config(tags=[env_var('TEST_TAG', 'none')]) }} select 1 as id"
    (folder / "models" / "orders.sql").write_text(text)
    assert "orders" in listing("ls", "--output", "name", "-s", "tag:none")
    monkeypatch.setenv("TEST_TAG", "some")
    assert "orders" in listing("ls", "--output", "name", "-s", "tag:some")


def test_a_changed_package(listing: Listing, folder: Path) -> None:
    package = folder / "local"
    (package / "models").mkdir(parents=True)
    (package / "dbt_project.yml").write_text(json.dumps({"name": "other", "profile": "p"}))
    (folder / "packages.yml").write_text("packages: [{local: local}]")
    listing("deps")
    before = listing()
    (package / "models" / "shared.sql").write_text("select 1 as id")
    assert set(listing()) - set(before) == {"shared"}


def test_what_a_command_compiles_stays_its_own(listing: Listing, folder: Path) -> None:
    (folder / "models" / "orders.sql").write_text(
        "{{ config(materialized='ephemeral') }} select '{{ invocation_id }}' as id"
    )
    select = ("compile", "--no-introspect", "-s", "customers")
    (first, second) = ("\n".join(listing(*select)) for _ in range(2))
    assert first.count("__dbt__cte__orders") == second.count("__dbt__cte__orders") == 2
    assert first != second


def test_a_broken_model(
    commands: Commands, listing: Listing, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing()
    path = folder / "models" / "orders.sql"
    text = path.read_text()
    path.write_text("select {{ nothing")
    capsys.readouterr()
    assert commands.run(["ls"]) == 2
    assert "Compilation Error in model orders" in capsys.readouterr().out
    path.write_text(text)
    assert listing() == before


def test_a_project_that_cannot_be_read(
    commands: Commands, listing: Listing, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing()
    path = folder / "dbt_project.yml"
    text = path.read_text()
    path.write_text("name: [")
    assert commands.run(["ls"]) == 2
    captured = capsys.readouterr()
    assert (captured.out.count("Syntax error near line"), captured.err) == (1, "")
    path.write_text(text)
    assert listing() == before


def test_warnings_are_repeated(
    commands: Commands, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "dbt_project.yml"
    project = json.loads(path.read_text())
    path.write_text(json.dumps({**project, "models": {"p": {"nowhere": {"+enabled": True}}}}))
    for _ in range(2):
        assert commands.run(["ls"]) == 0
        assert "models.p.nowhere" in capsys.readouterr().out
    assert commands.run(["ls", "--warn-error"]) == 2


def test_a_cleaned_project_is_parsed_again(
    listing: Listing, folder: Path, parses: list[str]
) -> None:
    before = listing()
    listing("clean")
    assert not (folder / "target").exists()
    assert listing() == before
    assert len(parses) == 2


def test_a_command_changes_neither_folder_nor_environment(
    listing: Listing, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, folder / "inner", ignore=lambda *_: ["inner"])
    before = dict(os.environ)
    listing("deps", "--project-dir", "inner")
    assert (Path.cwd(), dict(os.environ)) == (folder, before)


def test_options_do_not_reach_the_next_command(
    listing: Listing, folder: Path, parses: list[str]
) -> None:
    text = "select {{ var('n', 0) }} as id, '{{ target.name }}', {{ flags.FULL_REFRESH }}"
    (folder / "models" / "orders.sql").write_text(text)
    options = ("--vars", "n: 5", "--target", "prod", "--full-refresh")
    manifest = folder / "target" / "manifest.json"
    for _ in range(2):
        assert "select 5 as id, 'prod', True" in compiled(listing, *options)
        assert json.loads(manifest.read_text())["nodes"]["model.p.orders"]["schema"] == "prod"
        assert "select 0 as id, 'dev', False" in compiled(listing)
        assert json.loads(manifest.read_text())["nodes"]["model.p.orders"]["schema"] == "s"
    # Neither do they discard what is parsed.
    assert len(parses) == 2


def test_artifacts_are_those_of_the_command(listing: Listing, folder: Path) -> None:
    path, ids = folder / "target" / "manifest.json", set()
    for command in ("ls", "ls", "compile", "compile"):
        listing(command)
        ids.add(json.loads(path.read_text())["metadata"]["invocation_id"])
    assert len(ids) == 4
    path.unlink()
    listing("compile")
    assert path.exists()
