"""Stream models of one source that are committed together."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from tests.functional.lake import rows, snapshot_ids, summary
from tests.functional.shop_streams import (
    ALL_ITEMS,
    ALL_ORDERS,
    CONFIG,
    FRONTIER,
    ITEMS,
    MODELS,
    ORDERS,
    SOURCES,
    WRITE_ID,
    item,
    land,
)
from tests.functional.stream_service import service, wait_for

NOTES = "select id, value, deleted from {{ stream(source('landing', 'shop')) }} where tbl = 'notes'"


def order(id: int, value: str | None) -> dict[str, Any]:
    return {"tbl": "orders", "id": id, "value": value, "deleted": value is None}


class TestGroup:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            **MODELS,
            "worth.sql": "select count(*) as n from {{ ref('orders') }} join {{ ref('items') }}"
            " on items.order_id = orders.id",
        }

    def test_one_commit(self, project: Any) -> None:
        land(project, "1", order(1, "new"), item(10, 1), item(11, 1))
        run_dbt(["run"])
        land(project, "2", order(1, "paid"), order(2, "new"), item(20, 2))
        results = run_dbt(["run"])
        assert [result.status for result in results] == ["success"] * 3
        assert rows(project, ALL_ORDERS) == [(1, "paid"), (2, "new")]
        assert rows(project, ALL_ITEMS) == [(10, 1), (11, 1), (20, 2)]
        assert rows(project, "select n from {schema}.worth") == [(3,)]
        orders, items = summary(project, "orders"), summary(project, "items")
        assert orders[WRITE_ID] == items[WRITE_ID]
        assert orders[FRONTIER] == items[FRONTIER]

    def test_a_table_without_changes_is_not_touched(self, project: Any) -> None:
        before = snapshot_ids(project, "items")
        land(project, "3", order(1, None))
        run_dbt(["run"])
        assert snapshot_ids(project, "items") == before
        assert rows(project, ALL_ORDERS) == [(2, "new")]

    def test_a_part_of_it_is_refused(self, project: Any) -> None:
        _, said = run_dbt_and_capture(["run", "-s", "orders"], expect_pass=False)
        assert "are committed together, and this run leaves out model.test.items" in said
        run_dbt(["run", "-s", "config.commit_group:shop"])

    def test_threads_for_all(self, project: Any) -> None:
        _, said = run_dbt_and_capture(["run", "--threads", "1"], expect_pass=False)
        assert "run with --threads 2" in said

    def test_a_member_that_fails_stops_all(self, project: Any) -> None:
        broken = Path(project.project_root) / "models" / "items.sql"
        good = broken.read_text()
        before = snapshot_ids(project, "orders")
        land(project, "4", order(3, "new"), item(30, 3))
        broken.write_text(good.replace("order_id", "no_such_column"))
        _, said = run_dbt_and_capture(["run"], expect_pass=False)
        assert "no_such_column" in said
        assert "model.test.items of the commit group `shop` was not run" in said
        assert snapshot_ids(project, "orders") == before
        broken.write_text(good)
        run_dbt(["run"])
        assert rows(project, ALL_ORDERS) == [(2, "new"), (3, "new")]

    def test_a_new_member_catches_up(self, project: Any) -> None:
        land(project, "5", {"tbl": "notes", "id": 1, "value": "hello", "deleted": False})
        run_dbt(["run"])
        orders = snapshot_ids(project, "orders")
        folder = Path(project.project_root) / "models"
        append_only = "{{ config(materialized='stream', commit_group='shop') }}\n"
        (folder / "notes.sql").write_text(append_only + NOTES)
        land(project, "6", {"tbl": "notes", "id": 2, "value": "again", "deleted": False})
        run_dbt(["run"])
        run_dbt(["run"])
        assert rows(project, "select id from {schema}.notes order by id") == [(1,), (2,)]
        assert snapshot_ids(project, "orders") == orders
        (folder / "notes.sql").unlink()

    def test_full_refresh_is_one_commit_of_all(self, project: Any) -> None:
        before = [len(snapshot_ids(project, name)) for name in ("orders", "items")]
        run_dbt(["run", "--full-refresh"])
        after = [len(snapshot_ids(project, name)) for name in ("orders", "items")]
        assert after == [count + 1 for count in before]
        assert rows(project, ALL_ORDERS) == [(2, "new"), (3, "new")]
        assert summary(project, "orders")[WRITE_ID] == summary(project, "items")[WRITE_ID]

    @pytest.mark.slow
    def test_a_service(self, project: Any) -> None:
        with service(project, "group") as running:
            land(project, "7", order(7, "new"), item(70, 7))
            wait_for(lambda: (7, "new") in rows(project, ALL_ORDERS))
            assert (70, 7) in rows(project, ALL_ITEMS)
            health = json.loads(running.ask("health"))
            assert sorted(health["streams"]) == ["model.test.items", "model.test.orders"]
            time.sleep(1)
            assert running.stop() == 0


class TestMembersThatDoNotGoTogether:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        quick = CONFIG + ", batch_rows=10"
        other = ITEMS.replace("'shop')", "'other')").replace(
            "order_id, deleted", "false as deleted"
        )
        return {
            "sources.yml": SOURCES,
            "orders.sql": ORDERS % CONFIG.replace("'shop'", "'sources'"),
            "items.sql": other % CONFIG.replace("'shop'", "'sources'"),
            "slow.sql": ORDERS % CONFIG.replace("'shop'", "'paces'"),
            "quick.sql": ITEMS % quick.replace("'shop'", "'paces'"),
        }

    def test_different_sources(self, project: Any) -> None:
        _, said = run_dbt_and_capture(["run", "-s", "orders", "items"], expect_pass=False)
        assert "read different sources" in said

    def test_different_batches(self, project: Any) -> None:
        _, said = run_dbt_and_capture(["run", "-s", "slow", "quick"], expect_pass=False)
        assert "`batch_rows` is" in said and "paces" in said


class TestMembersThatDoNotCome:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        waits = "-- depends_on: {{ ref('%s') }}\n"
        return {
            **MODELS,
            "items.sql": waits % "bad" + ITEMS % CONFIG,
            "bad.sql": "select no_such_column as a",
            "first.sql": ORDERS % CONFIG.replace("'shop'", "'circle'"),
            "second.sql": waits % "between" + ITEMS % CONFIG.replace("'shop'", "'circle'"),
            "between.sql": "select * from {{ ref('first') }}",
        }

    def test_one_that_is_skipped_before_another_comes(self, project: Any) -> None:
        land(project, "1", order(1, "new"), item(10, 1))
        _, said = run_dbt_and_capture(["run", "-s", "orders", "items", "bad"], expect_pass=False)
        assert "model.test.items of the commit group `shop` was not run" in said

    def test_one_that_reads_another(self, project: Any) -> None:
        chosen = ["run", "-s", "first", "second", "between"]
        _, said = run_dbt_and_capture(chosen, expect_pass=False)
        assert "Models of a group must not read each other" in said


class TestFullRefresh:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {**MODELS, "orders.sql": ORDERS % f"{CONFIG}, full_refresh=false"}

    def test_members_that_differ(self, project: Any) -> None:
        land(project, "1", order(1, "old"), item(10, 1))
        run_dbt(["run"])
        _, said = run_dbt_and_capture(["run", "--full-refresh"], expect_pass=False)
        assert "Set `full_refresh` to the same value" in said
        assert rows(project, ALL_ORDERS) == [(1, "old")]


class TestWithoutTransactions:
    """A catalog that cannot commit several tables at once."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            **MODELS,
            "strict.sql": ORDERS % f"{CONFIG}, on_no_transactions='stop'".replace("shop", "strict"),
            "strict_items.sql": ITEMS
            % f"{CONFIG}, on_no_transactions='stop'".replace("shop", "strict"),
        }

    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SqliteBackend, "capabilities", lambda self: {"views": True})

    def test_it_is_told_and_works(self, project: Any) -> None:
        land(project, "1", order(1, "new"), item(10, 1))
        _, said = run_dbt_and_capture(["run", "-s", "config.commit_group:shop"])
        assert "cannot commit several tables at once" in said
        assert rows(project, ALL_ORDERS) == [(1, "new")]
        assert rows(project, ALL_ITEMS) == [(10, 1)]

    def test_it_is_refused_where_that_is_wanted(self, project: Any) -> None:
        chosen = ["run", "-s", "config.commit_group:strict"]
        _, said = run_dbt_and_capture(chosen, expect_pass=False)
        assert "set `on_no_transactions: warn`" in said
