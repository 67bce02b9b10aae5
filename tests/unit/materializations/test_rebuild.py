"""Which nodes are built again after a conflict, and with which arguments."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from click import Option
from dbt.cli.option_types import SampleType
from dbt.event_time.sample_window import SampleWindow

from dbt.adapters.iceberg_stream.materializations.rebuild import dbt_arguments, nodes_to_rebuild


def manifest(**parents: str) -> dict[str, Any]:
    """A manifest of models in the schema `s`, each with the names of its parents."""
    nodes = {
        name: {"resource_type": "model", "schema": "s", "name": name, "fqn": ["shop", name]}
        | {"package_name": "shop", "original_file_path": f"models/{name}.sql"}
        for name in parents
    }
    nodes["a_test"] = {"resource_type": "test", "schema": "t", "name": "a", "fqn": ["shop", "t"]}
    children = {name: [n for n, of in parents.items() if name in of.split()] for name in parents}
    return {
        "metadata": {"project_name": "shop"},
        "nodes": nodes,
        "child_map": {**children, "a": [*children["a"], "a_test", "exposure"]},
    }


def test_descendants_of_the_build_are_built_again() -> None:
    shop = manifest(a="", ephemeral="a", c="ephemeral", not_staged="a", other="")
    staged = {("s", "a"), ("s", "c"), ("s", "other")}
    assert list(nodes_to_rebuild(shop, [("s", "a")], staged)) == [
        "fqn:shop.a,path:models/a.sql",
        "fqn:shop.c,path:models/c.sql",
    ]


def test_tables_are_named_by_their_alias() -> None:
    shop = manifest(a="")
    shop["nodes"]["a"]["alias"] = "b"
    (selector,) = nodes_to_rebuild(shop, [("s", "b")], {("s", "b")})
    assert selector == "fqn:shop.a,path:models/a.sql"
    assert list(nodes_to_rebuild(shop, [("s", "a")], {("s", "a")})) == []


@pytest.mark.parametrize(
    ("of_node", "selector"),
    [
        ({"original_file_path": "models/[a]*.sql"}, "fqn:shop.a,path:models/[[]a][*].sql"),
        ({"original_file_path": "models/of a/a.sql"}, "fqn:shop.a"),
        ({"original_file_path": "models/a,b/a.sql"}, "fqn:shop.a"),
        ({"package_name": "other", "fqn": ["other", "a"]}, "fqn:other.a"),
    ],
)
def test_selectors(of_node: dict[str, Any], selector: str) -> None:
    shop = manifest(a="")
    shop["nodes"]["a"] |= of_node
    assert list(nodes_to_rebuild(shop, [("s", "a")], {("s", "a")})) == [selector]


def test_arguments() -> None:
    plain = SimpleNamespace(which="run", vars={})
    assert dbt_arguments(plain, ["fqn:a.b"]) == ["run", "--select", "fqn:a.b", "--vars", "{}"]
    options = {"threads": 4, "full_refresh": True, "defer": False, "target_path": "x y"}
    full = SimpleNamespace(which="build", vars={"a": [1]}, exclude=("c", "d"), **options)
    assert dbt_arguments(full, ["m"]) == [
        *("build", "--select", "m", "--full-refresh", "--target-path", "x y", "--threads", "4"),
        *("--exclude", "c", "d", "--vars", json.dumps({"a": [1]})),
    ]


def test_a_sample_stays_the_same() -> None:
    day = datetime(2026, 1, 2, tzinfo=timezone.utc)
    sample = SampleWindow(start=day, end=day + timedelta(hours=6))
    arguments = dbt_arguments(SimpleNamespace(which="run", vars={}, sample=sample), ["m"])
    text = arguments[arguments.index("--sample") + 1]
    assert SampleType().convert(text, Option(["--sample"]), None) == sample
