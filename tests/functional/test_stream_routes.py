"""One stream model whose rows go to several tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from tests.functional.lake import rows, snapshot_ids, summary, table
from tests.functional.shop_streams import SOURCES, WRITE_ID
from tests.functional.stream_service import service, wait_for

SHOP = """
{{ config(materialized='stream', unique_key='id', apply_as_deletes='deleted', route_by='tbl',
          %s, **{'except': ['deleted', 'tbl']}) }}
select * from {{ stream(source('landing', 'shop')) }}
"""
ROUTES = "routes={'orders': {'columns': ['id', 'value']}, 'Items': {'columns': ['id', 'order_id']}}"
COUNTED = "select count(*) as n from {{ stream_table(ref('shop'), 'orders') }}"


def land(project: Any, name: str, *changes: tuple[Any, ...]) -> None:
    """Put a file of changes into the folder: table, id, order_id, value."""
    path = Path(project.project_root) / "landing" / "shop"
    path.mkdir(parents=True, exist_ok=True)
    names = ("tbl", "id", "order_id", "value", "deleted")
    rows = [dict(zip(names, change, strict=False)) for change in changes]
    (path / f".{name}").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (path / f".{name}").rename(path / f"{name}.json")


def actual(project: Any, name: str, columns: str = "*") -> list[tuple[Any, ...]]:
    return rows(project, f"select {columns} from {{schema}}.{name} order by id")


class TestRoutes:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"sources.yml": SOURCES, "shop.sql": SHOP % ROUTES, "counted.sql": COUNTED}

    def test_each_row_goes_to_its_table(self, project: Any) -> None:
        land(
            project,
            "1",
            ("orders", 1, None, "new"),
            ("items", 10, 1, None),
            ("ORDERS", 2, None, "new"),
            ("strange", 1, None, "?"),
            (None, 3, None, "none"),
        )
        run_dbt(["run"])
        assert actual(project, "shop__orders") == [(1, "new"), (2, "new")]
        assert actual(project, "shop__items") == [(10, 1)]
        assert actual(project, "shop", "id, value") == [(1, "?"), (3, "none")]
        assert rows(project, "select n from {schema}.counted") == [(2,)]
        ids = {summary(project, f"shop{name}")[WRITE_ID] for name in ("", "__orders", "__items")}
        assert len(ids) == 1

    def test_a_table_without_changes_is_not_touched(self, project: Any) -> None:
        before = [snapshot_ids(project, name) for name in ("shop", "shop__items")]
        land(project, "2", ("orders", 1, None, None, True), ("orders", 4, None, "new"))
        results = run_dbt(["run", "-s", "shop"])
        assert results[0].adapter_response["rows_affected"] == 2
        assert [snapshot_ids(project, name) for name in ("shop", "shop__items")] == before
        assert actual(project, "shop__orders") == [(2, "new"), (4, "new")]

    def test_a_new_route_has_all_that_the_source_has(self, project: Any) -> None:
        path = Path(project.project_root) / "models" / "shop.sql"
        path.write_text(SHOP % ROUTES.replace("}}", "}, 'strange': none}"))
        land(project, "3", ("strange", 2, None, "!"))
        run_dbt(["run", "-s", "shop"])
        assert actual(project, "shop__strange", "id, value") == [(1, "?"), (2, "!")]

    def test_a_record_without_the_key_of_all_routes(self, project: Any) -> None:
        record = Path(project.project_root) / "landing" / "shop" / "4.json"
        record.write_text(json.dumps({"tbl": "orders", "value": "of no order"}))
        _, output = run_dbt_and_capture(["run", "-s", "shop"], expect_pass=False)
        assert "lacks the key `id`" in output
        record.unlink()
        run_dbt(["run", "-s", "shop"])
        assert actual(project, "shop", "id, value") == [(1, "?"), (3, "none")]

    def test_full_refresh(self, project: Any) -> None:
        names = ("shop", "shop__orders", "shop__items", "shop__strange")
        before = [len(snapshot_ids(project, name)) for name in names]
        run_dbt(["run", "--full-refresh"])
        assert [len(snapshot_ids(project, name)) - 1 for name in names] == before
        assert actual(project, "shop", "id, value") == [(3, "none")]
        assert actual(project, "shop__orders") == [(2, "new"), (4, "new")]


class TestNewTables:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        partitioned = "create_tables=true, partition_by=['value']"
        return {"sources.yml": SOURCES, "shop.sql": SHOP % partitioned}

    def test_they_appear(self, project: Any) -> None:
        land(project, "1", ("orders", 1, None, "a"), ("no name!", 1, None, "x"))
        run_dbt(["run"])
        assert actual(project, "shop__orders", "id, value") == [(1, "a")]
        assert actual(project, "shop", "id, value") == [(1, "x")]
        assert [f.name for f in table(project, "shop__orders").spec().fields] == ["value"]
        before = snapshot_ids(project, "shop__orders")
        land(project, "2", ("items", 5, 1, "b"), ("items", 6, 1, "b"))
        run_dbt(["run"])
        assert actual(project, "shop__items", "id, order_id") == [(5, 1), (6, 1)]
        assert snapshot_ids(project, "shop__orders") == before

    @pytest.mark.slow
    def test_in_a_service(self, project: Any) -> None:
        with service(project, "routes") as running:
            wait_for(lambda: '"idle"' in running.ask("health"))
            land(project, "3", ("people", 1, None, "c"), ("items", 5, 1, None, True))
            wait_for(lambda: len(actual(project, "shop__items")) == 1)
            assert running.stop() == 0
        assert actual(project, "shop__people", "id, value") == [(1, "c")]


class TestSharedKeys:
    """A key has one row in all tables: its route changes, and it is deleted without a route."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        shared = "route_keys='shared', routes=['orders', 'items']"
        live = "{{ config(materialized='stream', unique_key='id', apply_as_deletes='deleted') }}"
        copied = "{{ config(materialized='stream', unique_key='id', route_by='tbl', routes=['orders', 'items']) }}"
        return {
            "sources.yml": SOURCES,
            "shop.sql": SHOP % shared,
            "live.sql": live + "select * from {{ stream(source('landing', 'shop')) }}",
            "copied.sql": copied + "select * from {{ stream(ref('live'), changes=true) }}",
        }

    def assert_rows(self, project: Any, **expected: list[tuple[int, str | None]]) -> None:
        for model in ("shop", "copied"):
            for route in ("", "orders", "items"):
                name = f"{model}__{route}" if route else model
                wanted = expected.get(route or "own", [])
                assert actual(project, name, "id, value") == wanted, name

    def test_no_row_stays_behind(self, project: Any) -> None:
        land(
            project,
            "1",
            ("orders", 1, None, "a"),
            ("orders", 2, None, "a"),
            ("items", 3, None, "a"),
            (None, 4, None, "a"),
            ("items", 5, None, "a"),
            ("orders", 5, None, "b"),
        )
        run_dbt(["run"])
        self.assert_rows(
            project, own=[(4, "a")], orders=[(1, "a"), (2, "a"), (5, "b")], items=[(3, "a")]
        )
        land(
            project,
            "2",
            (None, 1, None, None, True),
            ("items", 2, None, "b"),
            ("other", 3, None, "b"),
            ("orders", 4, None, "b"),
        )
        run_dbt(["run"])
        orders = [(4, "b"), (5, "b")]
        self.assert_rows(project, own=[(3, "b")], orders=orders, items=[(2, "b")])
        run_dbt(["run", "--full-refresh"])
        self.assert_rows(project, own=[(3, "b")], orders=orders, items=[(2, "b")])


class TestForeignTables:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "sources.yml": SOURCES,
            "shop.sql": SHOP % "create_tables=true, on_bad_record='dead_letters'",
            "shop__orders.sql": "{{ config(materialized='table') }} select 7L as mine",
        }

    def test_one_that_somebody_else_has_made(self, project: Any) -> None:
        run_dbt(["run", "-s", "shop__orders"])
        land(project, "1", ("orders", 1, None, "a"))
        _, said = run_dbt_and_capture(["run", "-s", "shop"], expect_pass=False)
        assert "shop__orders, which already exists and was not created by" in said
        assert rows(project, "select * from {schema}.shop__orders") == [(7,)]

    def test_the_name_of_the_table_of_bad_records(self, project: Any) -> None:
        (Path(project.project_root) / "landing" / "shop" / "1.json").unlink()
        land(project, "2", ("dead_letters", 1, None, "a"), ("good\n", 2, None, "b"))
        run_dbt(["run", "-s", "shop"])
        assert actual(project, "shop", "id, value") == [(1, "a"), (2, "b")]


class TestFaults:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "sources.yml": SOURCES,
            "lost.sql": "{{ config(materialized='stream', routes=['a']) }}"
            "select * from {{ stream(source('landing', 'shop')) }}",
            "both.sql": SHOP % "commit_group='g', routes={'a b': {'sequence_by': 'id'}}",
            "gone.sql": (SHOP % "create_tables=true").replace("'tbl',\n", "'kind',\n"),
        }

    @pytest.mark.parametrize(
        ("model", "messages"),
        [
            ("lost", ["`routes` needs a `route_by`"]),
            (
                "both",
                ["exclude each other", "cannot be part of a table's name", "has no sequence_by"],
            ),
            ("gone", ["`route_by` names `kind`, which the query does not return"]),
        ],
    )
    def test_it_is_told(self, project: Any, model: str, messages: list[str]) -> None:
        land(project, "1", ("a", 1, None, "x"))
        _, said = run_dbt_and_capture(["run", "-s", model], expect_pass=False)
        assert [message for message in messages if message not in said] == []
