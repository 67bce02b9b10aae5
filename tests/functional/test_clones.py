"""`dbt clone` of a schema into another one, and what dbt, Spark and maintenance do with both."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture
from dbt_common.exceptions import DbtRuntimeError

from tests.functional.builds import command, variables
from tests.functional.lake import run, table

pytestmark = pytest.mark.manifest

ORDERS = """
{{ config(materialized='incremental', unique_key='id',
    table_properties={'history.expire.max-snapshot-age-ms': '1'}) }}
select id, {{ var('version', 1) }} as version from range({{ var('first', 0) }}, {{ var('end', 3) }})
"""
TOTALS = "{{ config(materialized='table') }} select count(*) as orders from {{ ref('orders') }}"
LARGE = "{{ config(materialized='view') }} select id from {{ ref('orders') }} where id > 1"


@pytest.fixture(scope="class")
def dev(unique_schema: str) -> str:
    """Name of the schema that is cloned into."""
    return f"{unique_schema}_dev"


@pytest.fixture(scope="class")
def dbt_profile_data(
    unique_schema: str, dev: str, dbt_profile_target: dict[str, Any]
) -> dict[str, Any]:
    outputs = {
        "prod": {**dbt_profile_target, "schema": unique_schema},
        "dev": {**dbt_profile_target, "schema": dev},
    }
    return {"test": {"outputs": outputs, "target": "prod"}}


def read(project: Any, name: str, schema: str | None = None) -> list[tuple[Any, ...]]:
    """All rows, as PyIceberg reads them."""
    rows = table(project, name, schema).scan().to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def clone(project: Any, *arguments: str) -> tuple[Any, str]:
    place = ["--state", str(Path(project.project_root) / "state"), "--target", "dev"]
    return run_dbt_and_capture(["clone", *place, *arguments])


class Shop:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"orders.sql": ORDERS, "totals.sql": TOTALS, "large.sql": LARGE}

    @pytest.fixture(scope="class", autouse=True)
    def built(self, project: Any, dev: str) -> Iterator[None]:
        root = Path(project.project_root)
        run_dbt(["run"])
        (root / "state").mkdir()
        shutil.copy(root / "target" / "manifest.json", root / "state")
        yield
        relation = project.adapter.Relation.create(database=project.database, schema=dev)
        with project.adapter.connection_named("clean_up"):
            project.adapter.drop_schema(relation)


class TestBothTablesAreWritten(Shop):
    def test_nothing_is_lost(self, project: Any, dev: str) -> None:
        results, _ = clone(project)
        messages = {result.node.name: result.message for result in results}
        assert messages["orders"] == "CLONE 3 rows" and messages["totals"] == "CLONE 1 rows"
        kinds = dict(project.adapter.catalog.relations(dev))
        assert kinds == {"orders": "table", "totals": "table", "large": "view"}
        old = [(0, 1), (1, 1), (2, 1)]
        assert read(project, "orders", dev) == old

        # A merge and `create or replace` of the clones, by dbt.
        run_dbt(["run", "--target", "dev", *variables(version=2, first=2, end=4)])
        new = [(0, 1), (1, 1), (2, 2), (3, 2)]
        assert (read(project, "orders", dev), read(project, "totals", dev)) == (new, [(4,)])
        assert (read(project, "orders"), read(project, "totals")) == (old, [(3,)])

        # The original is rewritten, and then it expires what its clone still has.
        run_dbt(["run", "--full-refresh", "--select", "orders", *variables(version=5, end=6)])
        latest = [(number, 5) for number in range(6)]
        steps = [f"--only={step}" for step in ("compact", "expire_snapshots", "remove_orphans")]
        steps += ["--remove-orphans", "--orphans-older-than=0", "--option=rewrite-all=true"]
        for name in (f"{project.test_schema}.orders", f"{dev}.orders"):
            maintained = command(project, "maintain", name, *steps)
            assert maintained.exit_code == 0, maintained.output
            checked = command(project, "check", name, "--data")
            assert checked.exit_code == 0, checked.output
            orphans = command(project, "orphans", name, "--older-than", "0")
            assert orphans.output.startswith("0 orphans"), orphans.output
        assert (read(project, "orders", dev), read(project, "orders")) == (new, latest)
        assert len(table(project, "orders").metadata.snapshots) == 2, "the tag's, and the latest"

        # Spark refuses what would remove shared files.
        for statement in (
            "drop table {dev}.orders purge",
            "call {catalog}.system.expire_snapshots('{dev}.orders')",
        ):
            sql = statement.format(dev=dev, catalog=project.database)
            with pytest.raises(DbtRuntimeError, match="GC is disabled"):
                run(project, sql)
        assert read(project, "orders", dev) == new

        # Cloned again, it has the rows of the original.
        _, output = clone(project, "--full-refresh", "--select", "orders")
        assert "is cloned again: readers find nothing" in output
        assert (read(project, "orders", dev), read(project, "totals", dev)) == (latest, [(4,)])
        run(project, f"delete from {dev}.orders where id < 5")
        assert (read(project, "orders", dev), read(project, "orders")) == ([(5, 5)], latest)


class TestTheOriginalIsDropped(Shop):
    def test_the_clone_keeps_its_rows(self, project: Any, dev: str) -> None:
        clone(project, "--select", "orders")
        run(project, f"insert into {dev}.orders values (9, 9)")
        relation = project.adapter.Relation.create(
            database=project.database, schema=project.test_schema, identifier="orders", type="table"
        )
        with project.adapter.connection_named("drop"):
            project.adapter.drop_relation(relation)
        rows = [(0, 1), (1, 1), (2, 1), (9, 9)]
        assert read(project, "orders", dev) == rows
        # It is created again, in the same folder.
        run_dbt(["run", "--select", "orders", *variables(version=7)])
        name = f"{project.test_schema}.orders"
        removed = command(project, "orphans", name, "--older-than", "0", "--remove")
        assert removed.exit_code == 0, removed.output
        checked = command(project, "check", f"{dev}.orders", "--data")
        assert checked.exit_code == 0, checked.output
        assert read(project, "orders", dev) == rows
        assert read(project, "orders") == [(0, 7), (1, 7), (2, 7)]


class TestNotClonable(Shop):
    def test_a_view_says_why(self, project: Any, dev: str) -> None:
        run(project, "alter table {schema}.orders set tblproperties ('gc.enabled' = 'false')")
        _, output = clone(project, "--select", "orders")
        assert (
            f"{dev}.orders becomes a view of {project.test_schema}.orders, which cannot be cloned: "
            "its files may belong to other tables" in output
        )
        assert dict(project.adapter.catalog.relations(dev)) == {"orders": "view"}
        # The view makes room for a clone, and the other way round.
        run(project, "alter table {schema}.orders set tblproperties ('gc.enabled' = 'true')")
        _, output = clone(project, "--select", "orders", "--full-refresh")
        assert dict(project.adapter.catalog.relations(dev)) == {"orders": "table"}
        run(project, "alter table {schema}.orders set tblproperties ('gc.enabled' = 'false')")
        _, output = clone(project, "--select", "orders", "--full-refresh")
        assert dict(project.adapter.catalog.relations(dev)) == {"orders": "view"}
        assert not table(project, "orders").metadata.refs.keys() - {"main"}
