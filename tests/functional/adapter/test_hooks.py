from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dbt.tests.adapter.hooks import fixtures
from dbt.tests.adapter.hooks.test_model_hooks import (
    BaseDuplicateHooksInConfigs,
    BaseHookRefs,
    BaseHooksRefsOnSeeds,
    BasePrePostModelHooks,
    BasePrePostModelHooksInConfig,
    BasePrePostModelHooksInConfigKwargs,
    BasePrePostModelHooksInConfigWithCount,
    BasePrePostModelHooksOnSeeds,
    BasePrePostModelHooksOnSeedsPlusPrefixed,
    BasePrePostModelHooksOnSeedsPlusPrefixedWhitespace,
    BasePrePostModelHooksOnSnapshots,
    BasePrePostSnapshotHooksInConfigKwargs,
)
from dbt.tests.adapter.hooks.test_run_hooks import BaseAfterRunHooks, BasePrePostRunHooks
from dbt.tests.util import run_dbt

from tests.functional.lake import rows, run


@pytest.fixture(scope="class")
def test_data_dir() -> Path:
    return Path(fixtures.__file__).parent / "data"


def in_spark_sql(hooks: Any) -> Any:
    """Hooks of a project file: Spark has no vacuum and no type `text`."""
    if isinstance(hooks, dict):
        return {key: in_spark_sql(value) for key, value in hooks.items()}
    if isinstance(hooks, list):
        return [in_spark_sql(value) for value in hooks]
    if isinstance(hooks, str):
        return hooks.replace("vacuum ", "refresh table ").replace(" text", " string")
    return hooks


def check_context(context: dict[str, Any], state: str, project: Any) -> None:
    """The target's fields, less `dbname`, `host`, `user`, `pass`: our profile has none."""
    assert context["test_state"] == state
    assert context["target_name"] == "default"
    assert context["target_schema"] == project.test_schema
    assert context["target_threads"] == 4
    assert context["target_type"] == "iceberg_stream"
    assert context["run_started_at"]
    assert context["invocation_id"]
    assert context["thread_id"].startswith("Thread-") or context["thread_id"] == "MainThread"


class OurTarget:
    """Checks of the model hooks with our target's fields instead of Postgres's."""

    def check_hooks(self, state: str, project: Any, host: Any, count: int = 1) -> None:
        for context in self.get_ctx_vars(state, count=count, project=project):
            check_context(context, state, project)


# The hooks use Postgres's vacuum and target fields.
class TestPrePostModelHooks(OurTarget, BasePrePostModelHooks):
    @pytest.fixture(scope="class")
    def project_config_update(self):
        return in_spark_sql(BasePrePostModelHooks.project_config_update.__wrapped__(self))


# The target's fields are not Postgres's.
class TestHookRefs(OurTarget, BaseHookRefs):
    pass


# The target's fields are not Postgres's.
class TestPrePostModelHooksInConfig(OurTarget, BasePrePostModelHooksInConfig):
    pass


# The hooks use Postgres's vacuum and target fields.
class TestPrePostModelHooksInConfigWithCount(OurTarget, BasePrePostModelHooksInConfigWithCount):
    @pytest.fixture(scope="class")
    def project_config_update(self):
        base = BasePrePostModelHooksInConfigWithCount.project_config_update
        return in_spark_sql(base.__wrapped__(self))


# The target's fields are not Postgres's.
class TestPrePostModelHooksInConfigKwargs(OurTarget, BasePrePostModelHooksInConfigKwargs):
    pass


class TestPrePostModelHooksOnSeeds(BasePrePostModelHooksOnSeeds):
    pass


class TestHooksRefsOnSeeds(BaseHooksRefsOnSeeds):
    pass


class TestHooksOnSeedsPlusPrefixed(BasePrePostModelHooksOnSeedsPlusPrefixed):
    pass


class TestHooksOnSeedsPlusPrefixedWhitespace(BasePrePostModelHooksOnSeedsPlusPrefixedWhitespace):
    pass


class TestPrePostModelHooksOnSnapshots(BasePrePostModelHooksOnSnapshots):
    pass


class TestPrePostSnapshotHooksInConfigKwargs(BasePrePostSnapshotHooksInConfigKwargs):
    pass


class TestDuplicateHooksInConfigs(BaseDuplicateHooksInConfigs):
    pass


# The hooks create tables with Postgres's types; the target's fields are not Postgres's.
class TestPrePostRunHooks(BasePrePostRunHooks):
    @pytest.fixture(scope="class")
    def project_config_update(self):
        return in_spark_sql(BasePrePostRunHooks.project_config_update.__wrapped__(self))

    def check_hooks(self, state, project, host):
        check_context(self.get_ctx_vars(state, project), state, project)


class TestAfterRunHooks(BaseAfterRunHooks):
    pass


LOG = "insert into {{ target.schema }}.hook_log values (now(), '%s')"
HOOKS = f"""
{{{{ config(materialized='%s',
    pre_hook=["{LOG % "pre"}", before_begin("{LOG % "before begin"}")],
    post_hook=[after_commit("{LOG % "after commit"}"), "{LOG % "post"}"]) }}}}
select 1 as id
"""
# As other adapters' materializations do it.
CUSTOM = """
{% materialization other_table, default %}
  {%- set relation = this.incorporate(type='table') -%}
  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}
  {% call statement('main') %}{{ create_table_as(False, relation, sql) }}{% endcall %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ adapter.commit() }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {{ return({'relations': [relation]}) }}
{% endmaterialization %}
"""


class TestHooksOutsideTransactions:
    """Iceberg has no transactions over statements: all hooks run, in dbt's order."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        kinds = ("table", "view", "incremental", "other_table")
        return {f"of_{kind}.sql": HOOKS % kind for kind in kinds}

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {"custom.sql": CUSTOM}

    @pytest.mark.parametrize("kind", ["table", "view", "incremental", "other_table"])
    def test_all_run_in_order(self, project: Any, kind: str) -> None:
        run(project, "create or replace table {schema}.hook_log (at timestamp, hook string)")
        run_dbt(["run", "--select", f"of_{kind}"])
        hooks = rows(project, "select hook from {schema}.hook_log order by at")
        assert hooks == [("before begin",), ("pre",), ("post",), ("after commit",)]


# What a hook does to its session, and a query that shows whether a later model is in it.
TRACES = {
    "setting": ("set spark.sql.session.timeZone = Asia/Tokyo", "current_timezone()"),
    "immediate": (
        "execute immediate 'set spark.sql.session.timeZone = Asia/Tokyo'",
        "current_timezone()",
    ),
    "schema": ("use {{ target.schema }}", "current_schema()"),
}


class TestTraces:
    """A model runs as if those before it in its thread had not run."""

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, object]:
        return {"models": {"+materialized": "table"}}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        plain = "-- depends_on: {{ ref('%s') }}\nselect %s as value"
        models = {"before.sql": "select 1 as id"}
        for name, (hook, value) in TRACES.items():
            models[f"{name}.sql"] = f'{{{{ config(pre_hook="{hook}") }}}} select 1 as id'
            models[f"{name}_before.sql"] = plain % ("before", value)
            models[f"{name}_after.sql"] = plain % (name, value)
        view = '{{ config(pre_hook="create temporary view totals as select 1 as id") }} '
        view += "-- depends_on: {{ ref('%s') }}\nselect * from totals"
        return models | {"first_view.sql": view % "before", "second_view.sql": view % "first_view"}

    def test_none_is_left(self, project: Any) -> None:
        run_dbt(["run", "--threads", "1"])
        for name in TRACES:
            (before, after) = (
                rows(project, f"select * from {{schema}}.{name}_{when}")
                for when in ("before", "after")
            )
            assert before == after
