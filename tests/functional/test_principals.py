"""A REST catalog and two of its users: what the reader may not do is refused by the catalog."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.engines.embedded import status
from dbt.adapters.iceberg_stream.materializations import python_model
from tests.file_contents import file_contents
from tests.functional.principals import DROP, INCREMENTAL, SNAPSHOT, TABLE, VIEW, contents
from tests.servers.rest_catalog import RestCatalog

HOOKED = """
{{ config(materialized='view', pre_hook="delete from {{ ref('people') }} where id = 1") }}
select 1 as id
"""


@pytest.fixture(scope="class")
def dbt_profile_data(
    unique_schema: str, dbt_profile_target: dict[str, Any], catalog: RestCatalog
) -> dict[str, Any]:
    common = {key: value for key, value in dbt_profile_target.items() if key != "warehouse"}
    common |= {"schema": unique_schema, "catalog_properties": {"uri": catalog.uri}}
    outputs = {
        "writer": common | {"token": catalog.token("wanda")},
        "reader": common | {"token": catalog.token("rita", "reader")},
        "expired": common | {"token": catalog.token("otto", seconds=-60)},
        "stranger": common | {"token": "no-token-of-this-catalog"},
    }
    return {"test": {"outputs": outputs, "target": "writer"}}


def threads(engine_home: Path, name: str) -> int:
    """The number of threads of the engine whose name begins with `name`."""
    engine = status(engine_home)
    assert engine is not None
    names = (file.read_text() for file in Path(f"/proc/{engine.jvm.pid}/task").glob("*/comm"))
    return sum(thread.startswith(name) for thread in names)


class TestWriterAndReader:
    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"people.csv": "id,name\n1,Ada\n2,Grace\n"}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "a_table.sql": "{{ config(materialized='table') }}" + TABLE,
            "a_view.sql": VIEW,
            "merged.sql": INCREMENTAL,
            "hooked.sql": HOOKED,
        }

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"history.sql": SNAPSHOT}

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {"drop.sql": DROP}

    @pytest.fixture(scope="class", autouse=True)
    def built(self, project: Any) -> Iterator[None]:
        run_dbt(["build", "--exclude", "hooked"])
        run_dbt(["run", "--select", "merged", "--vars", "{suffix: '!'}"])
        yield
        # The last command's user drops the schema.
        run_dbt(["compile", "--target", "writer"])

    def test_the_reader_reads(self, project: Any) -> None:
        show = ["show", "--inline", "select * from {{ ref('a_view') }} order by id", "--output"]
        results = run_dbt([*show, "json", "--target", "reader"])
        rows = results.results[0].agate_table.rows
        assert [tuple(row) for row in rows] == [(1, "Ada"), (2, "Grace")]

    def test_sessions_leave_no_threads(self, project: Any, engine_home: Path) -> None:
        run_dbt(["show", "--inline", "select * from {{ ref('a_table') }}"])
        assert threads(engine_home, "rest-metrics") == 0

    @pytest.mark.parametrize(
        "command",
        [
            ["run", "--select", "a_table"],
            ["run", "--select", "a_view"],
            ["run", "--select", "merged", "--vars", "{suffix: '?'}"],
            ["run", "--select", "merged", "--full-refresh"],
            ["run", "--select", "hooked"],
            ["seed"],
            ["snapshot", "--vars", "{suffix: '?'}"],
            ["run-operation", "drop_people"],
        ],
        ids=lambda command: "-".join(command[:3]).replace("--", ""),
    )
    @pytest.mark.variants(4)
    def test_the_reader_writes_nothing(
        self, project: Any, catalog: RestCatalog, command: list[str]
    ) -> None:
        before = contents(project)
        _, output = run_dbt_and_capture([*command, "--target", "reader"], expect_pass=False)
        assert "rita" in output
        assert "not authorized" in output
        assert contents(project) == before

    def test_what_would_be_refused_is_not_computed(self, project: Any) -> None:
        begun = time.monotonic()
        _, output = run_dbt_and_capture(
            ["run", "--select", "a_table", "--vars", "{rows: 100000000000}", "--target", "reader"],
            expect_pass=False,
        )
        assert "refused to write to" in output
        assert time.monotonic() - begun < 60

    def test_a_refused_commit_leaves_no_files(self, project: Any, catalog: RestCatalog) -> None:
        # A statement of the user's own is refused at its commit, when its files are written.
        before = set(catalog.folder.rglob("*.parquet"))
        _, output = run_dbt_and_capture(
            ["run-operation", "insert_person", "--target", "reader"], expect_pass=False
        )
        assert "rita" in output
        assert set(catalog.folder.rglob("*.parquet")) == before

    def test_every_write_says_whose_it_was(self, project: Any) -> None:
        snapshot = next(project.adapter.catalog.snapshots((project.test_schema, "merged")))
        assert snapshot.properties["iceberg-stream.principal"] == "wanda"

    def test_an_expired_token(self, project: Any) -> None:
        with pytest.raises(DbtRuntimeError, match="The token of otto expired at"):
            run_dbt(["run", "--select", "a_table", "--target", "expired"])

    def test_a_foreign_token(self, project: Any) -> None:
        with pytest.raises(DbtRuntimeError, match="does not accept the token for the owner of"):
            run_dbt(["run", "--select", "a_table", "--target", "stranger"])

    def test_no_token_is_left_behind(
        self, project: Any, dbt_profile_data: Any, logs_dir: str
    ) -> None:
        outputs = dbt_profile_data["test"]["outputs"].values()
        tokens = [output["token"].encode() for output in outputs]
        root = Path(project.project_root)
        engine = Path(next(iter(outputs)).get("engine_home", root / ".iceberg_stream"))
        logs = [(file, file.read_bytes()) for file in engine.glob("*.log*")]
        written = [*file_contents(root), *file_contents(Path(logs_dir)), *logs]
        assert any(file.name == "dbt.log" for file, _ in written)
        assert not [file for file, content in written if any(t in content for t in tokens)]

    def test_the_catalog_saw_each_user(self, project: Any, catalog: RestCatalog) -> None:
        seen = {(who, status) for who, method, _, status in catalog.requests() if method != "GET"}
        assert ("wanda", 200) in seen
        assert ("rita", 403) in seen
        assert ("rita", 200) not in {
            (who, status)
            for who, method, path, status in catalog.requests()
            if method == "POST" and not path.endswith("/metrics")
        }


SLOW = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id') }}
{% set sleep = "select java_method('java.lang.Thread', 'sleep', " ~ var('pause', 1) ~ "000L)" %}
{% if execute %}{% do run_query(sleep) %}{% endif %}
select 1 as id, '{{ var("suffix", "") }}' as name
"""
# Its frame is older than the token that reads it.
LAZY = """
import time

def model(dbt, spark):
    rows = dbt.ref("slow_0").where("id = 1")
    time.sleep(11)
    return rows
"""
# What it returns is in its session only.
KEPT = LAZY.replace("where", "localCheckpoint().where")
# The token expires before Spark counts, once.
COUNTS = """
import time
from pathlib import Path

def model(dbt, spark):
    rows, begun = dbt.ref("slow_0"), Path("{begun}")
    if not begun.exists():
        begun.touch()
        time.sleep(11)
    return spark.range(rows.count())
"""
MINT = """
import pathlib, sys, time, jwt
folder, key = pathlib.Path(sys.argv[1]), sys.argv[2]
with open(folder / "minted", "a") as minted:
    minted.write("x")
print(jwt.encode({"sub": "mina", "role": "writer", "exp": int(time.time()) + int(sys.argv[3])}, key))
"""


class TestRenewal:
    """A build that takes longer than a token lives."""

    @pytest.fixture(scope="class")
    def minting(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("mint")
        (folder / "mint.py").write_text(MINT)
        return folder

    @pytest.fixture(scope="class")
    def dbt_profile_data(
        self,
        unique_schema: str,
        dbt_profile_target: dict[str, Any],
        catalog: RestCatalog,
        minting: Path,
    ) -> dict[str, Any]:
        target = {k: v for k, v in dbt_profile_target.items() if k not in ("warehouse", "token")}
        target |= {
            "schema": unique_schema,
            "threads": 1,
            "catalog_properties": {"uri": catalog.uri},
            "token_command": f"{sys.executable} {minting / 'mint.py'} {minting} {catalog.key} "
            "{{ env_var('TOKEN_SECONDS', '9') }}",
        }
        return {"test": {"outputs": {"default": target}, "target": "default"}}

    @pytest.fixture(scope="class")
    def models(self, minting: Path) -> dict[str, str]:
        counts = COUNTS.replace("{begun}", str(minting / "begun"))
        models = {f"slow_{number}.sql": SLOW for number in range(6)}
        rows = LAZY.replace("11", "0")
        return models | {"lazy.py": LAZY, "counts.py": counts, "at_once.py": rows, "kept.py": KEPT}

    def test_the_token_is_renewed(self, project: Any, minting: Path, catalog: RestCatalog) -> None:
        run_dbt(["run", "--select", "slow_*"])
        run_dbt(["run", "--select", "slow_*", "--vars", "{suffix: '!'}"])
        rows = project.run_sql(f"select name from {project.test_schema}.slow_5", fetch="all")
        assert rows == [("!",)]
        assert len((minting / "minted").read_text()) > 2
        assert {s for who, *_, s in catalog.requests() if who == "mina"} <= {200, 204, 304, 404}

    @pytest.mark.slow
    def test_two_minutes_with_tokens_of_20_seconds(
        self, project: Any, catalog: RestCatalog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOKEN_SECONDS", "20")
        begun = time.monotonic()
        run_dbt(["run", "--select", "slow_*", "--vars", "{suffix: '?', pause: 20}"])
        assert time.monotonic() - begun > 120
        assert {s for who, *_, s in catalog.requests() if who == "mina"} <= {200, 204, 304, 404}

    def test_between_the_view_of_a_python_model_and_its_table(
        self, project: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_view = python_model.make_view

        def make_and_renew(session: Any, *arguments: Any) -> None:
            make_view(session, *arguments)
            session.renew({})

        monkeypatch.setenv("TOKEN_SECONDS", "120")
        monkeypatch.setattr(python_model, "make_view", make_and_renew)
        run_dbt(["run", "--select", "slow_0", "at_once"])
        sql = f"select count(*) from {project.test_schema}.at_once"
        assert project.run_sql(sql, fetch="all") == [(1,)]

    @pytest.mark.slow
    def test_python_models_that_take_longer(self, project: Any) -> None:
        run_dbt(["run", "--select", "slow_0", "lazy", "kept", "counts"])
        for model in ("lazy", "kept", "counts"):
            sql = f"select count(*) from {project.test_schema}.{model}"
            assert project.run_sql(sql, fetch="all") == [(1,)]


class TestFixedToken:
    """A build that takes longer than its token lives, which nobody can renew."""

    @pytest.fixture(scope="class")
    def dbt_profile_data(
        self, unique_schema: str, dbt_profile_target: dict[str, Any], catalog: RestCatalog
    ) -> dict[str, Any]:
        target = {k: v for k, v in dbt_profile_target.items() if k != "warehouse"}
        target |= {"schema": unique_schema, "threads": 1}
        target |= {"catalog_properties": {"uri": catalog.uri}}
        outputs = {
            "default": target | {"token": catalog.token("fitz")},
            "brief": target | {"token": "{{ env_var('DBT_ENV_SECRET_BRIEF') }}"},
        }
        return {"test": {"outputs": outputs, "target": "default"}}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        slow = {f"slow_{number}.sql": SLOW for number in range(3)}
        return {"quick.sql": SLOW.replace("var('pause', 1)", "0"), **slow}

    @pytest.fixture(autouse=True)
    def accepted(self, project: Any) -> Iterator[None]:
        yield
        # The last command's user drops the schema.
        run_dbt(["compile"])

    def test_what_was_built_is_whole_and_the_rest_says_why(
        self, project: Any, catalog: RestCatalog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_dbt(["run"])
        before = json.loads(contents(project))
        # It expires while the second model is built.
        monkeypatch.setenv("DBT_ENV_SECRET_BRIEF", catalog.token("fitz", seconds=15))
        command = ["run", "--target", "brief", "--vars", "{suffix: '!', pause: 17}"]
        results, output = run_dbt_and_capture(command, expect_pass=False)
        states = {result.node.name: str(result.status) for result in results}
        assert set(states.values()) == {"success", "error"}
        assert "The token of fitz expired at" in output
        assert "Models that succeeded before are committed" in " ".join(output.split())
        run_dbt(["compile"])
        after = json.loads(contents(project))
        changed = {name for name in before if after[name] != before[name]}
        assert changed == {name for name, state in states.items() if state == "success"}
