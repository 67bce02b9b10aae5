"""Names of builds and of their staged relations."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.builds.names import (
    check_build_name,
    published_tables,
    split_staged,
    staged_identifier,
    staged_name,
    with_published_names,
)


@pytest.mark.parametrize("name", ["pr-42", "a", "20261123-ae3c0bcb", "x_1"])
def test_valid(name: str) -> None:
    assert check_build_name(name) == name
    assert split_staged(staged_identifier("orders", name)) == ("orders", name)


@pytest.mark.parametrize("name", ["", "PR", "a b", "a__b", "-a", "a-", "a.b", "ä", "x" * 41])
def test_invalid(name: str) -> None:
    with pytest.raises(BuildError, match="not a valid name of a build"):
        check_build_name(name)


def test_full_refreshes_of_streams_are_no_build() -> None:
    with pytest.raises(BuildError, match="the streams publish them"):
        check_build_name("stream-full-refresh")


@pytest.mark.parametrize(
    "identifier", ["orders", "orders__dbt_build_", "__dbt_build_a", "a__dbt_tmp"]
)
def test_other_relations(identifier: str) -> None:
    assert split_staged(identifier) is None


def test_namespace_stays() -> None:
    assert staged_name(("shop", "orders"), "pr-1") == ("shop", "orders__dbt_build_pr-1")


def test_published_tables() -> None:
    relations = [("b", "table"), ("v", "view"), ("a", "table"), ("a__dbt_build_x", "table")]
    assert published_tables("s", relations) == [("s", "a"), ("s", "b")]


def test_queries_of_views() -> None:
    sql = "select 'orders__dbt_build_pr-1' from `lake`.`shop`.`orders__dbt_build_pr-1` as o"
    assert with_published_names(sql, "pr-1") == (
        "select 'orders__dbt_build_pr-1' from `lake`.`shop`.`orders` as o"
    )
    assert with_published_names(sql, "pr-2") == sql
