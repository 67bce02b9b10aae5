"""`iceberg-stream shell` on a project: typed, from standard input, and on a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from dbt.adapters.iceberg_stream.cli import main
from dbt.adapters.iceberg_stream.shell.commands import Commands
from tests.functional.builds import AtomicProject
from tests.functional.lake import rows, run, summary
from tests.functional.terminal import CTRL_C, CTRL_D, UP, Terminal
from tests.servers.rest_catalog import RestCatalog

ORDERS = """
{{ config(materialized='incremental', unique_key='id') }}
select id, {{ var('version', 1) }} as version from range({{ var('rows', 3) }})
"""
# Sums for minutes, on all cores.
SLOW = "{{ config(materialized='table') }} select sum(sin(id)) as s from range(100000000000)"
PROPERTIES = """
models:
  - name: orders
    columns:
      - name: id
        data_tests: [unique]
      - name: version
        data_tests: [{accepted_values: {arguments: {values: [1]}}}]
"""
# A time, a duration, colors.
VARIES = re.compile(r"\d\d:\d\d:\d\d |\d+\.\d+s?|\x1b\[\d*m|\.\.+| +")


class ShellProject:
    """A project, and the shell as a command."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"orders.sql": ORDERS, "slow.sql": SLOW, "properties.yml": PROPERTIES}

    @pytest.fixture
    def commands(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> Commands:
        monkeypatch.setenv("DBT_PROFILES_DIR", str(project.profiles_dir))
        return Commands()


def shell(project: Any, *lines: str) -> Result:
    """Run lines in a shell within this process."""
    options = ["--profiles-dir", str(project.profiles_dir)]
    for line in lines:
        options += ["--command", line]
    # The options become defaults of the process.
    with mock.patch.dict(os.environ):
        result: Result = CliRunner().invoke(main, ["shell", *options])
    return result


def process(project: Any, *command: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=project.project_root,
        env={**os.environ, "DBT_PROFILES_DIR": str(project.profiles_dir)},
        input=lines,
        capture_output=True,
        text=True,
        check=False,
    )


def run_results(project: Any) -> Any:
    return json.loads((Path(project.project_root) / "target" / "run_results.json").read_text())


class TestLines(ShellProject):
    def test_standard_input_gives_the_output_of_dbt(self, project: Any) -> None:
        lines = "run -s orders\ndbt run -s orders\n"
        typed = process(project, "dbt.adapters.iceberg_stream", "shell", lines=lines)
        assert (typed.returncode, typed.stderr) == (0, "")
        results = run_results(project)
        alone = process(project, "dbt.cli.main", "run", "-s", "orders")
        ours, theirs = (VARIES.sub(" ", text).splitlines() for text in (typed.stdout, alone.stdout))
        assert ours[-len(theirs) :] == theirs
        expected = run_results(project)
        assert results["args"] == expected["args"]
        assert results["metadata"].keys() == expected["metadata"].keys()

    def test_exit_codes(self, project: Any) -> None:
        ends = ("run -s orders --vars 'version: 2'", "test -s orders")
        assert shell(project, *ends).exit_code == 1
        assert (
            shell(project, *ends, "run -s orders --full-refresh", "test -s orders").exit_code == 0
        )
        assert shell(project, "nothing").exit_code == 2
        assert shell(project, "nothing", "ls", "quit", "nothing").exit_code == 0

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("nothing", "No such command 'nothing'"),
            ("run --nothing", "Usage: dbt run [OPTIONS]"),
            ("run -s 'orders", "no closing quotation"),
            ("init", "Run `dbt init` outside of the shell"),
            ("shell", "already running"),
            ("maintain", "Run `iceberg-stream maintain` outside of the shell"),
        ],
    )
    def test_errors_of_a_line(self, project: Any, line: str, message: str) -> None:
        result = shell(project, line)
        assert (result.exit_code, message in result.output) == (2, True)

    def test_help(self, project: Any) -> None:
        assert "`run-operation`" in shell(project, "help").output
        assert "Usage: dbt run [OPTIONS]" in shell(project, "help run").output

    def test_no_project(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(main, ["shell", "--command", "ls"])
        assert (result.exit_code, "--project-dir" in result.output) == (1, True)


class TestState(ShellProject):
    def test_commands_see_what_others_did_between(self, project: Any, commands: Commands) -> None:
        select = "select count(*), max(version) from {schema}.orders"
        assert commands.run(["run", "-s", "orders"]) == 0
        run(project, "drop table {schema}.orders")
        assert commands.run(["run", "-s", "orders", "--vars", "{version: 2, rows: 5}"]) == 0
        assert rows(project, select) == [(5, 2)]
        run(project, "create or replace table {schema}.orders as select 9L as id, 9 as version")
        assert commands.run(["run", "-s", "orders"]) == 0
        assert rows(project, select) == [(4, 9)]
        assert commands.run(["run", "-s", "orders", "--full-refresh"]) == 0
        assert commands.run(["run", "-s", "orders", "--vars", "version: 3"]) == 0
        assert rows(project, select) == [(3, 3)]

    def test_temporary_views_end_with_their_command(self, project: Any, commands: Commands) -> None:
        view = "create or replace temporary view passing as select 1 as id"
        header = f"{{% call set_sql_header(config) %}}{view};{{% endcall %}}"
        path = Path(project.project_root) / "models" / "first.sql"
        path.write_text("{{ config(materialized='table') }}" + header + "select id from passing")
        assert commands.run(["run", "-s", "first"]) == 0
        path.write_text("{{ config(materialized='table') }} select id from passing")
        assert commands.run(["run", "-s", "first"]) == 1
        path.unlink()

    def test_modules_of_python_models_are_read_again(
        self, project: Any, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = Path(project.project_root)
        monkeypatch.syspath_prepend(root)
        (root / "models" / "counted.py").write_text(
            "import pandas\nimport counting\n\ndef model(dbt, session):\n"
            "    return pandas.DataFrame({'n': [counting.NUMBER]})\n"
        )
        for number in (1, 23):
            (root / "counting.py").write_text(f"NUMBER = {number}\n")
            assert commands.run(["run", "-s", "counted"]) == 0
            assert rows(project, "select n from {schema}.counted") == [(number,)]
        (root / "models" / "counted.py").unlink()


class TestAtomic(AtomicProject, ShellProject):
    def test_each_command_publishes_its_own_build(self, project: Any, commands: Commands) -> None:
        ids = set()
        for version in (1, 2):
            assert commands.run(["run", "-s", "orders", "--vars", f"version: {version}"]) == 0
            assert rows(project, "select distinct version from {schema}.orders") == [(version,)]
            ids.add(run_results(project)["metadata"]["invocation_id"])
        assert len(ids) == 2


class TestToken(ShellProject):
    @pytest.fixture(scope="class")
    def token_file(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("token") / "token"

    @pytest.fixture(scope="class")
    def dbt_profile_target(
        self, dbt_profile_target: dict[str, Any], catalog: RestCatalog, token_file: Path
    ) -> dict[str, Any]:
        token_file.write_text(catalog.token("uma", seconds=60))
        common = {k: v for k, v in dbt_profile_target.items() if k not in ("warehouse", "token")}
        properties = {"type": "rest", "uri": catalog.uri}
        return {**common, "catalog_properties": properties, "token_file": str(token_file)}

    def test_each_command_reads_the_token(
        self, project: Any, commands: Commands, catalog: RestCatalog, token_file: Path
    ) -> None:
        command = ["run", "-s", "orders", "--full-refresh"]
        assert commands.run(command) == 0
        assert summary(project, "orders")["iceberg-stream.principal"] == "uma"
        token_file.write_text(catalog.token("uma", seconds=-60))
        assert commands.run(command) == 2
        token_file.write_text(catalog.token("ugo"))
        assert commands.run(command) == 0
        assert summary(project, "orders")["iceberg-stream.principal"] == "ugo"


class TestTerminal(ShellProject):
    @pytest.fixture
    def terminal(self, project: Any, tmp_path: Path) -> Iterator[Terminal]:
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
        options = ["--profiles-dir", str(project.profiles_dir)]
        command = [sys.executable, "-m", "dbt.adapters.iceberg_stream", "shell", *options]
        terminal = Terminal(command, Path(project.project_root), environment)
        yield terminal
        terminal.close()

    def test_a_session(self, project: Any, terminal: Terminal, tmp_path: Path) -> None:
        terminal.read_until("dbt>")
        terminal.enter(" ls -s orders --output name")
        terminal.read_until("\norders")
        terminal.read_until("dbt>")
        # Tab completes the only model that begins so.
        terminal.type("run -s ord\t")
        terminal.read_until("ers")
        terminal.type("\r")
        terminal.read_until("Completed successfully")
        terminal.type("nonsense")
        terminal.type(CTRL_C)
        terminal.enter("run -s slow")
        terminal.read_until("START sql table model")
        # Python misses a signal at the very moment when dbt's main thread begins to wait for others.
        time.sleep(1)
        terminal.type(CTRL_C)
        # dbt waits for the end of the statement, which takes minutes.
        terminal.read_until("CANCEL query model.test.slow")
        terminal.read_until(r"\[2\] dbt>")
        terminal.type(UP + UP)
        terminal.read_until("run -s orders")
        terminal.type("\r")
        terminal.read_until("Completed successfully")
        assert rows(project, "select count(*) from {schema}.orders") == [(3,)]
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
        history = (tmp_path / "dbt-iceberg-stream" / "shell_history").read_text()
        assert re.findall(r"^\+(.*)$", history, re.MULTILINE) == [
            *("run -s orders", "run -s slow", "run -s orders")
        ]
