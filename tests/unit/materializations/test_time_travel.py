"""`ref(…).at(…)`: which version it reads, and what is wrong with its arguments."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from dbt_common.exceptions import CompilationError, DbtRuntimeError
from jinja2.sandbox import SandboxedEnvironment

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.catalogs import one_catalog
from dbt.adapters.iceberg_stream.materializations.model_config import check_model_config
from dbt.adapters.iceberg_stream.materializations.stream import source_definition
from dbt.adapters.iceberg_stream.materializations.time_travel import at_version, read_at
from dbt.adapters.iceberg_stream.relation import IcebergStreamRelation
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from tests.unit.local_tables import insert, load, make_table, set_metadata

ORDERS = IcebergStreamRelation.create(database="lake", schema="s", identifier="t")
NODE = {"unique_id": "model.shop.report", "resource_type": "model"}
NAME = "`lake`.`s`.`t`"


@pytest.fixture
def ids(lake: IcebergCatalog) -> list[int]:
    """Two snapshots, a day apart, a tag on the first and a branch on the second."""
    import pyarrow as pa

    make_table(lake)
    rows = pa.table({"id": pa.array([1], pa.int64()), "x": ["a"]})
    first, second = (insert(lake, rows).snapshot.snapshot_id for _ in range(2))
    tag = {"type": "tag", "snapshot-id": first}
    refs = {**load(lake).metadata["refs"], "it's": tag, "20260131": tag, "2026-01-31": tag}
    refs["audit"] = {"type": "branch", "snapshot-id": second}
    times = ("2026-01-10T00:00:00+00:00", "2026-01-11T00:00:00+00:00")
    log = [
        {
            "snapshot-id": number,
            "timestamp-ms": int(datetime.fromisoformat(time).timestamp() * 1000),
        }
        for number, time in zip((first, second), times, strict=True)
    ]
    set_metadata(lake, refs=refs, **{"snapshot-log": log})
    return [first, second]


def at(lake: IcebergCatalog, **versions: Any) -> str:
    return at_version(one_catalog(lake), ORDERS, versions, NODE).render()


def test_tags_and_branches_are_read_by_name(lake: IcebergCatalog, ids: list[int]) -> None:
    assert at(lake, tag="it's") == f"{NAME} version as of 'it\\'s'"
    assert at(lake, branch="audit") == at(lake, version="audit") == f"{NAME} version as of 'audit'"
    assert at(lake, branch="main") == f"{NAME} version as of 'main'"


def test_other_versions_are_read_by_snapshot(lake: IcebergCatalog, ids: list[int]) -> None:
    first, second = (f"{NAME} version as of {number}" for number in ids)
    assert at(lake, version=ids[0]) == at(lake, snapshot_id=str(ids[0])) == first
    # Iceberg reads such a name as an id.
    assert at(lake, tag="20260131") == at(lake, tag=20260131) == first
    for time in ("2026-01-10 23:59:59", "2026-01-11T00:59:59+01:00", "2026-01-10T12:00Z"):
        assert at(lake, timestamp=time) == at(lake, version=time) == first
    assert at(lake, timestamp=date(2026, 1, 11)) == second
    assert at(lake, timestamp=datetime(2026, 1, 10, 12)) == first
    # There is a tag of this name, too.
    assert at(lake, timestamp="2026-01-31") == second
    assert at(lake, version="2026-01-31") == f"{NAME} version as of '2026-01-31'"


def test_no_version_is_the_current_one(lake: IcebergCatalog) -> None:
    assert at(lake) == at(lake, tag=None, timestamp=None) == NAME


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ({"tags": "x"}, "unknown argument `tags`. Give one of version, tag, branch"),
        ({"tag": "a", "branch": "b"}, "has `tag` and `branch`. Give one of them"),
        ({"tag": "audit"}, "`audit` is a branch, not a tag. Write `branch='audit'`"),
        ({"branch": "it's"}, "is a tag, not a branch"),
        ({"snapshot_id": "audit"}, "`audit` is a branch, not a snapshot_id"),
        ({"tag": "gone"}, r"s\.t has no tag `gone`. It has 2026-01-31, 20260131, it's"),
        ({"branch": 5}, r"s\.t has no branch `5`. It has audit, main"),
        ({"version": "gone"}, r"`gone` is not a version of s\.t.*It has the tags and branches"),
        ({"version": "²"}, r"`²` is not a version of s\.t"),
        ({"version": 5}, r"s\.t has no snapshot 5: it has expired, or the id is wrong"),
        ({"timestamp": "gone"}, "`timestamp` must be a time such as 2026-01-31T12:00.*got 'gone'"),
        ({"timestamp": "2026-01-09"}, "it did not exist yet.*history begins at 2026-01-10T00:00"),
        ({"version": "9999-01-01"}, "9999-01-01T00:00:00.* is in the future.*without a time zone"),
    ],
)
def test_errors(
    lake: IcebergCatalog, ids: list[int], versions: dict[str, Any], message: str
) -> None:
    with pytest.raises(CompilationError, match=message) as raised:
        at(lake, **versions)
    assert "`at` of `s.t` in model.shop.report" in str(raised.value)


def test_relations_without_versions(lake: IcebergCatalog) -> None:
    make_table(lake)
    with pytest.raises(CompilationError, match=r"s\.t has no snapshot yet"):
        at(lake, branch="main")
    for relation in (
        IcebergStreamRelation.create(identifier="t_tmp"),
        IcebergStreamRelation.create(identifier="__dbt__cte__t", type="cte"),
    ):
        with pytest.raises(CompilationError, match="so it has no versions"):
            at_version(one_catalog(lake), relation, {"tag": "a"}, NODE)
        test = {**NODE, "resource_type": "unit_test"}
        assert at_version(one_catalog(lake), relation, {"tag": "a"}, test) is relation
    other = IcebergStreamRelation.create(database="other", schema="s", identifier="t")
    with pytest.raises(DbtRuntimeError, match="has no catalog `other`"):
        at_version(one_catalog(lake), other, {"tag": "a"}, NODE)


def test_a_model_in_jinja(lake: IcebergCatalog, ids: list[int]) -> None:
    """Jinja passes its context, with dbt's adapter and node."""
    adapter = SimpleNamespace(
        at_version=lambda *arguments: at_version(one_catalog(lake), *arguments)
    )
    template = SandboxedEnvironment().from_string("select o.id from {{ orders.at(tag=tag) }} as o")
    context = {"adapter": adapter, "model": NODE, "orders": ORDERS}
    assert template.render(context, tag=None) == f"select o.id from {NAME} as o"
    sql = template.render(context, tag="20260131")
    assert sql == f"select o.id from {NAME} version as of {ids[0]} as o"


def test_the_run_can_read_what_it_has_begun_with(lake: IcebergCatalog, ids: list[int]) -> None:
    started = datetime.now(timezone.utc) - timedelta(seconds=1)
    assert at(lake, timestamp=started) == f"{NAME} version as of {ids[1]}"


def read(lake: IcebergCatalog, sql: str, value: Any) -> str:
    own = IcebergStreamRelation.create(database="lake", schema="s", identifier="own")
    return read_at(one_catalog(lake), sql, own, {**NODE, "config": {"read_at": value}})


def test_all_tables_of_a_model(lake: IcebergCatalog, ids: list[int]) -> None:
    sql = f"with c as (select * from {NAME}) select * from c join s.t version as of 5 join s.own"
    old = sql.replace(NAME, f"{NAME} version as of 'audit'", 1)
    assert read(lake, sql, "audit") == read(lake, sql, {"branch": "audit"}) == old
    assert read(lake, sql, None) == read(lake, sql, {"timestamp": None}) == sql


@pytest.mark.parametrize(
    ("sql", "value", "message"),
    [
        ("select * from s.t", "gone", r"`read_at` of `s\.t` in model\.shop\.report: `gone` is not"),
        ("select * from s.t, s.u", "audit", r"`read_at` of `s\.u` .*no table s\.u"),
        ("select * from a_temporary_view", "audit", "ephemeral or temporary"),
        ("select * from identifier('s.t')", "audit", "cannot tell which tables the query reads"),
    ],
)
def test_errors_of_read_at(
    lake: IcebergCatalog, ids: list[int], sql: str, value: Any, message: str
) -> None:
    with pytest.raises(CompilationError, match=message):
        read(lake, sql, value)


def test_the_view_of_the_latest_version_reads_the_current_rows(lake: IcebergCatalog) -> None:
    own = IcebergStreamRelation.create(database="lake", schema="s", identifier="own")
    node = {"unique_id": "model.shop.own.v2__latest_version_pointer"}
    sql = "select * from s.own_v2"
    assert (
        read_at(one_catalog(lake), sql, own, {**node, "config": {"read_at": "2026-01-31"}}) == sql
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"config": {"read_at": {"tags": "x"}}}, "`read_at` has the unknown key `tags`"),
        ({"config": {"read_at": "x", "materialized": "stream"}}, "cannot be used with `stream`"),
        ({"config": {"read_at": "x"}, "language": "python"}, "cannot be used with Python models"),
    ],
)
def test_models_that_cannot_be_read_at_a_version(model: dict[str, Any], message: str) -> None:
    with pytest.raises(CompilationError, match=message):
        check_model_config({**NODE, **model})


def test_a_stream_has_no_version() -> None:
    with pytest.raises(StreamError, match="cannot read `lake`.`s`.`t` version as of 5"):
        source_definition(ORDERS.replace(as_of="5"), None, {})
