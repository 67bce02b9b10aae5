"""What a model's digests notice of its code, and what they leave out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.unchanged.code import ProjectCode, variable_config

MODEL: dict[str, Any] = {
    "unique_id": "model.shop.orders",
    "resource_type": "model",
    "raw_code": "select {{ cents('v') }}, '{{ var(\"plus\") }}'",
    "database": "lake",
    "schema": "shop",
    "alias": "orders",
    "description": "Orders.",
    "columns": {"id": {"name": "id", "data_type": "bigint", "description": "The key."}},
    "constraints": [],
    "depends_on": {"macros": ["macro.shop.cents"], "nodes": []},
    "config": {
        "materialized": "table",
        "persist_docs": {},
        "contract": {"enforced": False},
        "pre-hook": [],
        "post-hook": [],
    },
}
SEED = {
    "unique_id": "seed.shop.raw",
    "resource_type": "seed",
    "original_file_path": "seeds/raw.csv",
    "config": {"materialized": "seed", "column_types": {}},
}


def macro(package: str, name: str, text: str, *calls: str) -> tuple[str, Any]:
    depends_on = SimpleNamespace(macros=list(calls))
    return f"macro.{package}.{name}", SimpleNamespace(
        name=name, package_name=package, macro_sql=text, depends_on=depends_on
    )


def project() -> dict[str, Any]:
    return {
        "macros": dict(
            [
                macro("shop", "cents", "{{ rounded() }} * {{ var('rate') }}", "macro.shop.rounded"),
                macro("shop", "rounded", "round(1)"),
                macro("shop", "unused", "1"),
                macro(
                    "shop",
                    "default__type_int",
                    "{{ var('width') }} {{ env_var('REGION') }} {{ small() }}",
                    "macro.shop.small",
                ),
                macro("shop", "small", "{{ var('small') }}"),
                macro("dbt", "default__type_int", "int"),
                macro("dbt", "generate_alias_name", "alias"),
                macro("dbt", "default__type_string", "string"),
                macro("dbt", "get_incremental_merge_sql", "merge"),
            ]
        ),
        "everywhere": {"the version of Spark": "4.1"},
        "model": copy.deepcopy(MODEL),
        "variables": {"plus": 1, "rate": 2, "other": 3, "width": 4, "small": 5},
    }


def parts(given: dict[str, Any], root: Path = Path()) -> dict[str, str]:
    code = ProjectCode(given["macros"], given["everywhere"])
    return code.parts(given["model"], root, given["variables"])


def different(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {part for part in {*one, *other} if one.get(part) != other.get(part)}


def add_macro(package: str, name: str, text: str, *calls: str) -> Callable[[dict[str, Any]], Any]:
    return lambda given: given["macros"].update([macro(package, name, text, *calls)])


def set_config(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda given: given["model"]["config"].update({key: value})


def set_model(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda given: given["model"].update({key: value})


def set_variable(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda given: given["variables"].update({name: value})


def document_column(given: dict[str, Any]) -> None:
    given["model"]["config"]["persist_docs"] = {"columns": True}


def enforce_contract(given: dict[str, Any]) -> None:
    given["model"]["config"]["contract"] = {"enforced": True}


CONFIG, NAME = {"its config"}, {"its name"}
OVERRIDE = {"a macro that overrides one of dbt or the adapter"}
VARIABLE, ENVIRONMENT = {"a variable of such a macro"}, {"an environment variable of such a macro"}
CHANGES: list[tuple[str, Callable[[dict[str, Any]], Any], set[str]]] = [
    ("variable of an override", set_variable("width", 3), VARIABLE),
    ("text for a number", set_variable("width", "4"), VARIABLE),
    ("variable of its macro", set_variable("small", 6), VARIABLE),
    ("macro of an override", add_macro("shop", "small", "{{ var('small') }} "), OVERRIDE),
    ("override", add_macro("shop", "default__type_string", "text"), OVERRIDE),
    ("own version", add_macro("shop", "iceberg_stream__type_string", "text"), OVERRIDE),
    ("strategy", add_macro("shop", "get_incremental_mine_sql", "insert"), OVERRIDE),
    ("materialization", add_macro("shop", "materialization_mine_default", "x"), OVERRIDE),
    ("snapshot strategy", add_macro("shop", "snapshot_mine_strategy", "x"), OVERRIDE),
    ("schema name", set_model("schema", "other"), NAME),
    ("alias", set_model("alias", "others"), NAME),
    ("catalog", set_model("database", "other"), NAME),
    ("materialized", set_config("materialized", "view"), CONFIG),
    ("partition_by", set_config("partition_by", ["id"]), CONFIG),
    ("table_properties", set_config("table_properties", {"a": "b"}), CONFIG),
    ("unique_key", set_config("unique_key", "id"), CONFIG),
    ("read_at", set_config("read_at", "v1"), CONFIG),
    ("pre-hook", set_config("pre-hook", [{"sql": "set x=1"}]), CONFIG),
    ("post-hook", set_config("post-hook", [{"sql": "select 1"}]), CONFIG),
    ("persisted docs", document_column, CONFIG),
    ("contract", enforce_contract, CONFIG),
    (
        "engine",
        lambda given: given["everywhere"].update({"the version of Spark": "4.2"}),
        {"the version of Spark"},
    ),
    ("more versions", lambda given: given["everywhere"].update({"the user": "me"}), {"the user"}),
]
NO_CHANGES: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    # The compiled query has what comes of these.
    ("code", set_model("raw_code", MODEL["raw_code"] + " ")),
    ("macro", add_macro("shop", "cents", "{{ var('rate') }}")),
    ("variable", set_variable("plus", 2)),
    ("name of the relation", add_macro("shop", "generate_alias_name", "{{ env_var(name) }}")),
    ("unused macro", add_macro("shop", "unused", "2")),
    ("new macro", add_macro("shop", "more", "2")),
    ("macro of dbt", add_macro("dbt", "default__type_string", "text")),
    ("unused variable", set_variable("other", 4)),
    ("new variable", set_variable("new", 4)),
    ("description", set_model("description", "All orders.")),
    ("tags", set_config("tags", ["nightly"])),
    ("meta", set_config("meta", {"owner": "me"})),
    ("group", set_config("group", "finance")),
    ("warn_row_drop", set_config("warn_row_drop", 0.1)),
    ("maintenance", set_config("maintenance", {"compact": True})),
    ("tag_on_success", set_config("tag_on_success", "nightly")),
]


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGION", "eu")


@pytest.mark.parametrize(
    ("change", "expected"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES]
)
def test_changes(change: Callable[[dict[str, Any]], Any], expected: set[str]) -> None:
    changed = project()
    change(changed)
    assert different(parts(project()), parts(changed)) == expected


@pytest.mark.parametrize("change", [c[1] for c in NO_CHANGES], ids=[c[0] for c in NO_CHANGES])
def test_what_changes_nothing(change: Callable[[dict[str, Any]], Any]) -> None:
    changed = project()
    change(changed)
    assert different(parts(project()), parts(changed)) == set()


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    before = parts(project())
    monkeypatch.setenv("OTHER", "x")
    assert parts(project()) == before
    monkeypatch.setenv("REGION", "us")
    assert different(parts(project()), before) == ENVIRONMENT
    monkeypatch.delenv("REGION")
    assert different(parts(project()), before) == ENVIRONMENT


@pytest.mark.parametrize("name", ["'wid' ~ suffix", "name"])
def test_a_name_that_is_computed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Once, any variable of the environment counted, such as the number of a CI job."""
    given = project()
    text = f"{{{{ var({name}) }}}} {{{{ env_var({name}) }}}}"
    add_macro("shop", "default__type_int", text)(given)
    before = parts(given)
    given["variables"]["other"] = 4
    assert different(parts(given), before) == VARIABLE
    given["variables"]["other"] = 3
    monkeypatch.setenv("BUILD_NUMBER", "17")
    assert parts(given) == before
    monkeypatch.setenv("DBT_REGION", "us")
    assert different(parts(given), before) == ENVIRONMENT


def test_documentation_matters_where_the_table_keeps_it() -> None:
    given = project()
    document_column(given)
    before = parts(given)
    given["model"]["columns"]["id"]["description"] = "Another key."
    assert different(parts(given), before) == CONFIG


@pytest.mark.parametrize("key, value", [("data_type", "int"), ("constraints", ["not_null"])])
def test_columns_matter_where_a_contract_has_them(key: str, value: Any) -> None:
    given = project()
    enforce_contract(given)
    before = parts(given)
    given["model"]["columns"]["id"][key] = value
    assert different(parts(given), before) == CONFIG


def test_seeds(tmp_path: Path) -> None:
    file = tmp_path / "seeds" / "raw.csv"
    file.parent.mkdir()
    file.write_text("id\n1\n")
    given = {**project(), "model": copy.deepcopy(SEED)}
    before = parts(given, tmp_path)
    file.write_text("id\n1\n")
    assert parts(given, tmp_path) == before
    file.write_text("id\n2\n")
    assert different(parts(given, tmp_path), before) == {"its file"}
    file.write_text("id\n1\n")
    given["model"]["config"]["column_types"] = {"id": "string"}
    assert different(parts(given, tmp_path), before) == CONFIG


def test_a_macro_that_calls_itself() -> None:
    given = project()
    add_macro("shop", "small", "{{ small() }}", "macro.shop.small")(given)
    assert different(parts(project()), parts(given)) == {*OVERRIDE, *VARIABLE}


@pytest.mark.parametrize(
    ("name", "config", "overrides"),
    [
        ("get_create_table_as_sql", {}, True),
        ("spark__create_table_as", {}, True),
        ("iceberg_stream__get_merge_sql", {}, True),
        ("default__snapshot_merge_sql", {}, True),
        ("get_incremental_mine_sql", {"incremental_strategy": "mine"}, True),
        ("get_incremental_mine_sql", {"incremental_strategy": "merge"}, False),
        ("get_incremental_merge_sql", {}, True),
        ("snapshot_mine_strategy", {"strategy": "mine"}, True),
        ("snapshot_mine_strategy", {"strategy": "check"}, False),
        ("default__type_string", {}, False),
        ("generate_schema_name", {}, False),
    ],
)
def test_macros_that_make_rows(name: str, config: dict[str, Any], overrides: bool) -> None:
    given = project()
    add_macro("dbt", name, "select 1")(given)
    assert ProjectCode(given["macros"], {}).override_of_rows(config) is None
    add_macro("shop", name, "select 2")(given)
    assert ProjectCode(given["macros"], {}).override_of_rows(config) == (
        name if overrides else None
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"updated_at": "updated_at", "check_cols": ["a", "b"]}, None),
        ({"check_cols": "all", "incremental_predicates": ["v > 1"]}, None),
        ({"incremental_predicates": ["v > current_date"]}, "incremental_predicates"),
        ({"dbt_valid_to_current": "date_add(current_date(), 1)"}, "dbt_valid_to_current"),
    ],
)
def test_configs_that_vary(config: dict[str, Any], expected: str | None) -> None:
    varies = variable_config(config)
    assert (varies and varies[0]) == expected
