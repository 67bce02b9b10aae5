"""Which steps run, and what is reported of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.update import SetPropertiesUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.maintenance.maintain import ATTEMPTS, Status, StepReport, maintain
from dbt.adapters.iceberg_stream.maintenance.scan_cost import Deletes, ScanCost
from dbt.adapters.iceberg_stream.maintenance.settings import MaintenanceSettings
from dbt.adapters.iceberg_stream.maintenance.steps.compact import pays, plan_compaction
from dbt.adapters.iceberg_stream.maintenance.steps.step import Action, Skip, TableState
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.tables.commit.change import append
from tests.unit.local_tables import NAME, commit, data_file, load, make_catalog, make_table, rows
from tests.unit.maintenance.small_tables import (
    REWRITTEN,
    Procedures,
    compacts,
    make_fragmented,
)

COMPACT = MaintenanceSettings(("compact",))
CONFLICT = "Cannot commit, found new delete for replaced data file: x"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IcebergCatalog]:
    monkeypatch.setattr("time.sleep", lambda _: None)
    catalog = make_catalog(tmp_path)
    yield catalog
    catalog.close()


def run(
    spark: Procedures, settings: MaintenanceSettings = COMPACT, **more: Any
) -> list[StepReport]:
    return list(maintain(spark.context, NAME, settings, **more))


def test_small_files_are_merged(lake: IcebergCatalog) -> None:
    make_fragmented(lake)
    before = rows(lake)
    spark = Procedures(lake, compacts(lake))
    (report,) = run(spark)
    assert report.status is Status.DONE and report.after is not None and report.before is not None
    assert (report.before.data_files, report.after.data_files) == (12, 1)
    assert report.before.cost.seconds > report.after.cost.seconds
    assert report.text == "12 data files rewritten as 1"
    assert rows(lake) == before
    assert spark.committed == [NAME]
    assert spark.calls == [
        "call `lake`.system.rewrite_data_files(table => '`s`.`t`', strategy => 'binpack', "
        "options => map('remove-dangling-deletes', 'true'))"
    ]


def test_what_does_not_pay_needs_no_spark(lake: IcebergCatalog) -> None:
    make_fragmented(lake, files=4)
    spark = Procedures(lake)
    reports = run(spark, MaintenanceSettings())
    assert {report.status for report in reports} == {Status.SKIPPED}
    assert reports[0].text == "no equality deletes"
    assert "does not pay: 0 small files to merge" in reports[1].text
    assert spark.calls == spark.committed == []


def test_an_empty_table(lake: IcebergCatalog) -> None:
    make_table(lake)
    spark = Procedures(lake)
    settings = MaintenanceSettings(("compact", "rewrite_manifests", "compute_statistics"))
    assert {report.status for report in run(spark, settings)} == {Status.SKIPPED}


def test_a_dry_run_changes_nothing(lake: IcebergCatalog) -> None:
    make_fragmented(lake)
    spark = Procedures(lake)
    (report,) = run(spark, dry_run=True)
    assert report.status is Status.PLANNED
    assert "12 small files to merge" in report.text
    assert spark.calls == []


def test_manifests_are_merged_if_there_are_many(lake: IcebergCatalog) -> None:
    make_fragmented(lake)
    result = [{"rewritten_manifests_count": 12, "added_manifests_count": 1}]
    spark = Procedures(lake, lambda: result)
    (report,) = run(spark, MaintenanceSettings(("rewrite_manifests",)))
    assert report.text == "12 manifests rewritten as 1"
    assert spark.calls == ["call `lake`.system.rewrite_manifests(table => '`s`.`t`')"]


def test_a_conflict_is_tried_again_with_the_new_version(lake: IcebergCatalog) -> None:
    make_fragmented(lake)
    spark = Procedures(lake, compacts(lake), [StatementError(CONFLICT)] * (ATTEMPTS - 1))
    (report,) = run(spark)
    assert report.status is Status.DONE
    assert len(spark.calls) == ATTEMPTS


def test_after_many_conflicts_it_yields(lake: IcebergCatalog) -> None:
    make_fragmented(lake)
    merged = [{"rewritten_manifests_count": 12, "added_manifests_count": 1}]
    spark = Procedures(lake, lambda: merged, [StatementError(CONFLICT)] * ATTEMPTS)
    _, report, later = run(spark, MaintenanceSettings())
    # The later steps run nevertheless.
    assert (report.failed, later.status) == (True, Status.DONE)
    assert f"Other writers committed to the table during each of {ATTEMPTS} attempts" in report.text
    assert CONFLICT in report.text
    assert load(lake).metadata["snapshots"][-1]["summary"]["operation"] == "append"


@pytest.mark.parametrize(
    "error",
    [
        "Cannot commit. Cannot determine whether the commit was successful",
        "ForbiddenException: rita is not authorized",
    ],
)
def test_other_errors_are_not_tried_again(lake: IcebergCatalog, error: str) -> None:
    make_fragmented(lake)
    spark = Procedures(lake, compacts(lake), [StatementError(error)])
    (report,) = run(spark)
    assert report.failed and error in report.text
    assert len(spark.calls) == 1


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (StatementError("ForbiddenException: rita is not authorized"), True),
        (StatementError("connection refused", engine_gone=True), True),
        (StatementError("Cannot find field 'x'"), False),
    ],
)
def test_whether_the_later_steps_run(
    lake: IcebergCatalog, error: StatementError, ends: bool
) -> None:
    make_fragmented(lake)
    merged = [{"rewritten_manifests_count": 12, "added_manifests_count": 1}]
    reports = run(Procedures(lake, lambda: merged, [error]), MaintenanceSettings())
    names = ["convert_deletes", "compact", *([] if ends else ["rewrite_manifests"])]
    assert [report.step for report in reports] == names


def test_a_damaged_table(lake: IcebergCatalog) -> None:
    make_fragmented(lake, 2)
    manifests = load(lake).metadata["snapshots"][-1]["manifest-list"]
    Path(manifests.removeprefix("file://")).write_bytes(b"no Avro")
    (report,) = run(Procedures(lake))
    assert report.failed and "Run `iceberg-stream check s.t`" in report.text


def test_who_may_not_write_computes_nothing(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise CatalogError("The catalog refused to write to s.t for rita")

    make_fragmented(lake)
    monkeypatch.setattr(lake, "check_write", refuse)
    spark = Procedures(lake)
    (report,) = run(spark)
    assert (report.status, report.text) == (
        Status.FAILED,
        "The catalog refused to write to s.t for rita",
    )
    assert spark.calls == []


def test_a_missing_table(lake: IcebergCatalog) -> None:
    (report,) = run(Procedures(lake))
    missing = "There is no table s.t in the catalog `lake`. Check the name."
    assert (report.status, report.text) == (Status.FAILED, missing)


def test_files_that_other_writers_changed_are_reported(lake: IcebergCatalog) -> None:
    make_fragmented(lake)
    spark = Procedures(lake, lambda: [{**REWRITTEN, "failed_data_files_count": 3}])
    (report,) = run(spark)
    assert "3 were left, because other writers changed them" in report.text


# How `compact` decides.


def plan(lake: IcebergCatalog, settings: MaintenanceSettings = COMPACT, **health: Any) -> str:
    """The statement of the step, or why it is skipped."""
    spark = Procedures(lake, lambda: [REWRITTEN])
    state = TableState.load(lake, NAME)
    state = TableState(state.table, replace(state.health, **health))
    planned = plan_compaction(spark.context, state, settings)
    if isinstance(planned, Skip):
        return planned.reason
    assert isinstance(planned, Action)
    planned.run()
    return spark.calls[0]


def test_a_sorted_table_stays_sorted(lake: IcebergCatalog) -> None:
    make_fragmented(lake)
    assert "strategy => 'sort', options" in plan(lake, is_sorted=True)
    by_curve = MaintenanceSettings(("compact",), "zorder(id, x)")
    assert "strategy => 'sort', sort_order => 'zorder(id, x)'" in plan(lake, by_curve)


def test_beside_a_stream_in_several_commits(lake: IcebergCatalog) -> None:
    make_fragmented(lake)
    update = Progress("model.shop.orders").as_property()
    assert isinstance(update, SetPropertiesUpdate)
    lake.commit(load(lake), (), (update,))
    sql = plan(lake)
    assert "'partial-progress.enabled', 'true'" in sql
    assert "'max-file-group-size-bytes', '1073741824'" in sql


def test_options_of_the_user(lake: IcebergCatalog) -> None:
    make_fragmented(lake, files=2)
    options = {"rewrite-all": "true", "remove-dangling-deletes": "false", "it's": "\\"}
    sql = plan(lake, MaintenanceSettings(("compact",), options=options))
    assert "'remove-dangling-deletes', 'false', 'rewrite-all', 'true'" in sql
    assert r"'it\'s', '\\'" in sql


@pytest.mark.parametrize(("fewest", "merged"), [("12", True), ("13", False)])
def test_fewer_small_files_than_the_user_wants(
    lake: IcebergCatalog, fewest: str, merged: bool
) -> None:
    make_fragmented(lake)
    settings = MaintenanceSettings(("compact",), options={"min-input-files": fewest})
    assert plan(lake, settings).startswith("call") is merged


def test_small_files_of_a_large_table(lake: IcebergCatalog) -> None:
    make_fragmented(lake)
    large = ScanCost(bytes=10**12, data_files=2000, manifests=10)
    assert "does not pay: 12 small files" in plan(lake, cost=large, data_files=2000)
    many = replace(large, data_files=5000)
    assert plan(lake, cost=many, data_files=5000, files_saved=3000).startswith("call")


@pytest.mark.parametrize(
    ("deleted", "applied"),
    [(10, False), (500_000, False), (4_000_000, True)],
)
def test_deletes_are_applied_if_that_pays(
    lake: IcebergCatalog, deleted: int, applied: bool
) -> None:
    make_table(lake)
    commit(lake, append(data_file("a", 10_000_000, file_size_in_bytes=512 * 2**20), properties={}))
    state = TableState.load(lake, NAME)
    cost = replace(
        state.health.cost,
        positional=Deletes(position_files=1, position_targets=1, positions=deleted),
    )
    sql = plan(
        lake,
        cost=cost,
        cost_after_compact=state.health.cost,
        position_files=1,
        position_rows=deleted,
    )
    assert ("'delete-file-threshold', '1'" in sql) == applied
    assert sql.startswith("call") == applied


@pytest.mark.parametrize(
    ("before", "after", "worth"),
    [
        ((10**6, 10, 1), (10**6, 10, 1), False),
        ((10**9, 100, 1), (10**9, 50, 1), False),
        ((10**6, 100, 1), (10**6, 50, 1), True),
        ((10**12, 2000, 1), (10**12, 1000, 1), True),
    ],
)
def test_what_pays(before: tuple[int, int, int], after: tuple[int, int, int], worth: bool) -> None:
    assert pays(ScanCost(*before), ScanCost(*after)) is worth
