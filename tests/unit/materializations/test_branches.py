"""The config `write_branch`, and the relations that it makes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.materializations.model_config import check_model_config
from dbt.adapters.iceberg_stream.relation import (
    IcebergStreamRelation,
    branch_of,
    project_relation,
    staging_relation,
)

QUOTING = SimpleNamespace(quoting={})


def node(materialized: str = "table", branch: Any = "audit", kind: str = "model") -> Any:
    """A node of dbt's graph, as far as relations need it."""
    return SimpleNamespace(
        config={"materialized": materialized, "write_branch": branch},
        resource_type=kind,
        unique_id="model.shop.orders",
        database="lake",
        schema="s",
        identifier="t",
        quoting_dict={},
        catalog_name=None,
    )


@pytest.mark.parametrize("value", [None, "", "main", "audit", "it's"])
@pytest.mark.parametrize("materialized", ["table", "incremental", "seed", "snapshot"])
def test_values(value: Any, materialized: str) -> None:
    config = {"materialized": materialized, "write_branch": value}
    check_model_config({"unique_id": "model.shop.orders", "config": config})
    is_main = value in (None, "", "main")
    assert branch_of(node(materialized, value)) == (None if is_main else value)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"write_branch": "2026"}, "must be the name of a branch that is no number, or null"),
        ({"write_branch": 5}, "must be the name of a branch"),
        ({"write_branch": " audit"}, "must be the name of a branch"),
        ({"write_branch": "None"}, "is the text 'None', which Jinja makes of none"),
        ({"write_branch": "a", "materialized": "view"}, "`materialized: view`, which has no bran"),
        ({"write_branch": "a", "materialized": "stream"}, "cannot be used with `stream` models"),
        ({"write_brach": "a"}, "did you mean `write_branch`?"),
    ],
)
def test_errors(config: dict[str, Any], error: str) -> None:
    with pytest.raises(CompilationError) as raised:
        check_model_config(
            {"unique_id": "model.shop.orders", "config": {"materialized": "table", **config}}
        )
    assert error in str(raised.value)


def test_views_and_streams_may_be_on_main() -> None:
    for materialized in ("view", "stream", "ephemeral"):
        assert branch_of(node(materialized)) is None
    config = {"materialized": "view", "write_branch": "main"}
    check_model_config({"unique_id": "model.shop.orders", "config": config})
    assert branch_of(node(kind="test")) is None


def test_a_model_writes_to_its_branch_and_others_read_it_under_the_name_of_the_table() -> None:
    relation = project_relation(lambda relation: relation.branch == "audit", lambda node: None)
    this = relation.create_from(QUOTING, node())
    assert str(this) == this.render() == "`lake`.`s`.`t`.`branch_audit`"
    assert this.replace(branch=None).render() == "`lake`.`s`.`t`"
    assert this.without_identifier().render() == "`lake`.`s`"
    read = relation.create_from(QUOTING, node(), limit=None)
    assert str(read) == "`lake`.`s`.`t` version as of 'audit'"
    # In Python models.
    assert read.render() == "`lake`.`s`.`t`.`branch_audit`"
    empty = relation.create_from(QUOTING, node(), limit=0)
    assert str(empty).startswith("(select * from `lake`.`s`.`t`.`branch_audit` where false")
    assert str(read.replace(as_of="'a tag'")) == "`lake`.`s`.`t` version as of 'a tag'"


def test_a_table_without_the_branch_is_read_on_main() -> None:
    relation = project_relation(lambda relation: False, lambda node: None)
    assert str(relation.create_from(QUOTING, node(), limit=None)) == "`lake`.`s`.`t`"
    assert relation.create_from(QUOTING, node()).branch == "audit"


def test_a_staged_relation() -> None:
    base = project_relation(lambda relation: True, lambda node: None)
    staging = staging_relation(lambda catalog, schema, name: f"{name}__staged", base)
    assert issubclass(staging, IcebergStreamRelation)
    read = staging.create_from(QUOTING, node(branch=None), limit=None)
    assert str(read) == "`lake`.`s`.`t__staged`"
