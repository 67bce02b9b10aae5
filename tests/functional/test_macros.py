"""Macros of a project beside those of the adapter: names, overrides, documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import dbt.include.iceberg_stream as package
import pytest
from dbt.tests.util import run_dbt

from tests.functional.lake import rows

MACROS = Path(package.__file__).parent / "macros"
PUBLIC = {"stream", "stream_table", "variable_scale_decimal"}
PUBLIC |= {"update_rows", "delete_rows", "maintain_table"}
# Data tests, which dbt keeps as macros.
DATA_TESTS = {"test_row_drop", "test_unchanged_history"}
# dbt finds the macro of a snapshot strategy by this name.
STRATEGIES = {"snapshot_check_strategy", "snapshot_iceberg_history_strategy"}
# What dbt calls by these names, and no adapter can dispatch.
OVERRIDDEN = {"run_hooks", "get_dbt_valid_to_current", "unique_key_fields"}
PREFIX = "iceberg_stream__"
DEFINED = sorted(
    name
    for path in MACROS.rglob("*.sql")
    for name in re.findall(r"{%-?\s*macro\s+(\w+)\(", path.read_text())
)


def test_internal_macros_have_a_prefix() -> None:
    assert {
        name for name in DEFINED if not name.startswith(PREFIX)
    } == PUBLIC | STRATEGIES | OVERRIDDEN


def test_data_tests() -> None:
    names = {
        f"test_{name}"
        for path in MACROS.rglob("*.sql")
        for name in re.findall(r"{%-?\s*test\s+(\w+)\(", path.read_text())
    }
    assert names == DATA_TESTS


def from_dbt() -> set[str]:
    """Macros of dbt itself: a project that defines one of these does so to override it."""
    import dbt.include.global_project as global_project
    import dbt.include.spark as spark

    actual: set[str] = set()
    for one in (global_project, spark):
        for path in (Path(one.__file__).parent / "macros").rglob("*.sql"):
            actual |= set(re.findall(r"{%-?\s*macro\s+(\w+)\(", path.read_text()))
    return actual


class TestMacrosOfTheProject:
    """A project happens to have macros of the names that ours have behind their prefix."""

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        names = {name.removeprefix(PREFIX) for name in DEFINED} - PUBLIC - STRATEGIES - from_dbt()
        assert {"build_table", "get_merge_plan", "quote_key"} <= names
        failing = "{{% macro {name}() %}}{{{{ exceptions.raise_compiler_error('{name}') }}}}{{% endmacro %}}"
        return {"theirs.sql": "\n".join(failing.format(name=name) for name in sorted(names))}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        merged = "{{ config(materialized='incremental', unique_key='id') }} select 1 as id, 2 as x"
        return {
            "a_view.sql": "select 1 as id",
            "a_table.sql": "{{ config(materialized='table') }} select * from {{ ref('a_view') }}",
            "merged.sql": merged,
            "replaced.sql": merged.replace("'id')", "'id', incremental_strategy='delete+insert')"),
        }

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"a_seed.csv": "id,name\n1,one\n"}

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        config = "config(target_schema=schema, unique_key='id', strategy='check', check_cols='all')"
        return {
            "snap.sql": f"{{% snapshot snap %}}{{{{ {config} }}}} select * from {{{{ ref('a_seed') }}}}{{% endsnapshot %}}"
        }

    def test_they_change_nothing(self, project: Any) -> None:
        for _ in range(2):
            run_dbt(["build"])
        for name in ("a_table", "merged", "replaced", "a_seed", "snap"):
            assert rows(project, f"select count(*) from {{schema}}.{name}") == [(1,)]


@pytest.mark.manifest
class TestPublicMacros:
    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {
            "named.sql": "{% macro iceberg_stream__stream_table(relation, route) %}{{ return('`' ~ route ~ '`') }}{% endmacro %}"
        }

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        number = "named_struct('scale', 2, 'value', X'FB2E')"
        return {
            "m.sql": "select '{{ stream_table(this, 'Paris') }}' as name",
            "n.sql": f'select {{{{ variable_scale_decimal("{number}", 10, 3) }}}} as number',
        }

    def test_a_project_overrides_one(self, project: Any) -> None:
        run_dbt(["run"])
        assert rows(project, "select name from {schema}.m") == [("`Paris`",)]
        assert rows(project, "select cast(number as string) from {schema}.n") == [("-12.340",)]

    def test_docs_show_their_arguments(self, project: Any) -> None:
        run_dbt(["parse"])
        manifest = json.loads((Path(project.project_root) / "target" / "manifest.json").read_text())
        for name in PUBLIC | DATA_TESTS:
            macro = manifest["macros"][f"macro.dbt_iceberg_stream.{name}"]
            assert macro["description"]
            assert macro["arguments"]
            assert all(argument["description"] for argument in macro["arguments"])


class TestTypesOfArguments:
    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        # The default of dbt 1.12.
        return {"flags": {"validate_macro_args": True}}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"m.sql": "select 1 as id"}

    def test_dbt_accepts_them(self, project: Any) -> None:
        run_dbt(["--warn-error", "parse", "--no-partial-parse"])
