"""Every kind of model has the same result whether it is published at once or with its build."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.builds import AtomicProject, published, relations
from tests.functional.lake import rows, table

RUN = "{% set run = var('run', 1) | int %}"
MODELS = {
    "a_table.sql": RUN
    + "{{ config(materialized='table', table_properties={'team': 'run ' ~ run}) }}"
    "select id, {{ run }} as run {{ \", 'x' as extra\" if run == 2 }} from {{ ref('a_seed') }}",
    "partitioned.sql": RUN
    + "{{ config(materialized='incremental', unique_key='id', partition_by=['run'] if run == 1"
    " else ['bucket(2, id)'], sort_order=['id'] if run == 1 else ['run', 'id']) }}"
    "select id, {{ run }} as run from {{ ref('a_table') }}",
    "new_columns.sql": RUN
    + "{{ config(materialized='incremental', unique_key='id', on_schema_change="
    "'append_new_columns') }} select * from {{ ref('a_table') }}",
    "synced.sql": RUN
    + "{{ config(materialized='incremental', on_schema_change='sync_all_columns') }}"
    "select id, {{ 'run' if run == 1 else 'cast(run as string) as text' }} from {{ ref('a_table') }}",
    "deleted.sql": "{{ config(materialized='incremental', incremental_strategy='delete+insert', "
    "unique_key='id') }} select id, run from {{ ref('a_table') }}",
    "overwritten.sql": "{{ config(materialized='incremental', incremental_strategy="
    "'insert_overwrite', partition_by=['id']) }}"
    "select id, run from {{ ref('a_table') }} where id < 3",
    "upgraded.sql": RUN
    + "{{ config(materialized='incremental', unique_key='id', table_properties={'format-version': "
    "'3' if run == 2 else '2'}) }} select id, run from {{ ref('a_table') }}",
    "since.sql": "{{ config(materialized='incremental') }} select id, run from {{ ref('a_table') }}"
    "{% if is_incremental() %} where run > (select max(run) from {{ this }}){% endif %}",
    "batches.sql": "{{ config(materialized='incremental', incremental_strategy='microbatch', "
    "event_time='at', batch_size='day', begin='2026-01-01', partition_by=['days(at)'], "
    "concurrent_batches=true) }} select id, at from {{ ref('events') }}",
    "events.sql": "{{ config(event_time='at') }} select id, timestamp '2026-01-01 12:00' + "
    "make_interval(0, 0, 0, cast(id as int)) as at from {{ ref('a_table') }}",
    "a_view.sql": RUN + "select id, {{ run }} as run from {{ ref('hidden') }}",
    "hidden.sql": "{{ config(materialized='ephemeral') }} select id from {{ ref('deleted') }}",
    "in_python.py": "def model(dbt, session):\n"
    "    dbt.config(materialized='table')\n"
    "    return dbt.ref('a_table').toPandas().head(2)[['id']]\n",
    "from_source.sql": "{{ config(materialized='table') }} select * from {{ source('own', 'deleted') }}"
    "\n-- depends_on: {{ ref('deleted') }}",
    "required.sql": "{{ config(materialized='incremental', unique_key='id', on_schema_change='fail') }}"
    "select id, run from {{ ref('a_table') }}",
    "models.yml": """
sources:
  - name: own
    schema: "{{ target.schema }}"
    tables: [{name: deleted}]
models:
  - name: required
    description: documented
    config: {contract: {enforced: true}, persist_docs: {relation: true, columns: true}}
    columns:
      - {name: id, data_type: bigint, description: its key, constraints: [{type: not_null}],
         data_tests: [unique]}
      - {name: run, data_type: int}
unit_tests:
  - name: a_unit_test
    model: required
    given: [{input: ref('a_table'), rows: [{id: 1, run: 5}]}]
    expect: {rows: [{id: 1, run: 5}]}
""",
}
SNAPSHOT = """
{% snapshot a_snapshot %}
{{ config(target_schema=target.schema, unique_key='id', strategy='check', check_cols=['run']) }}
select id, run from {{ ref('a_table') }}
{% endsnapshot %}
"""
TABLES = [name.split(".")[0] for name in MODELS if not name.endswith(".yml")]
TABLES = sorted({*TABLES, "a_seed", "a_snapshot"} - {"hidden"})
TIMES = "dbt_updated_at|dbt_valid_from|dbt_valid_to|dbt_scd_id"


class TestEveryKindOfModel(AtomicProject):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return MODELS

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"a_seed.csv": "id\n1\n2\n3\n"}

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"a_snapshot.sql": SNAPSHOT}

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        hook = "insert into {{ ref('in_python') }} select 0 from {{ ref('a_table') }} limit 1"
        return {"on-run-end": hook}

    @pytest.fixture
    def plain(self) -> Iterator[None]:
        os.environ["ICEBERG_STREAM_PUBLISH"] = "immediately"
        yield
        del os.environ["ICEBERG_STREAM_PUBLISH"]

    def contents(self, project: Any) -> dict[str, Any]:
        """Rows, columns and layout of each table and view."""
        catalog, schema = project.adapter.catalog, project.test_schema
        kinds = dict(catalog.relations(schema))
        contents: dict[str, Any] = {"relations": relations(project)}
        for name in TABLES:
            columns = [c for c in catalog.columns((schema, name)) if c.name not in TIMES.split("|")]
            names = ", ".join(f"`{column.name}`" for column in columns)
            actual = rows(project, f"select {names} from {{schema}}.{name} order by all")
            contents[name] = [kinds[name], columns, actual]
            if kinds[name] == "table":
                contents[name].append(self.layout(project, name))
        return contents

    def layout(self, project: Any, name: str) -> dict[str, Any]:
        metadata = table(project, name).metadata
        properties = {k: v for k, v in metadata.properties.items() if "codec" not in k}
        return {
            "version": metadata.format_version,
            "spec": str(metadata.spec()),
            "order": str(metadata.sort_order_by_id(metadata.default_sort_order_id)),
            "properties": properties,
            "required": [f.name for f in metadata.schema().fields if f.required],
            "snapshots": len(metadata.snapshots),
            # The first snapshot of a staged table may replace a table without rows.
            "operations": [s.summary.operation.value for s in metadata.snapshots[1:]],
            "refs": sorted(metadata.refs),
        }

    def test_same_as_published_at_once(self, project: Any, plain: None) -> None:
        end = ["--event-time-start", "2026-01-01", "--event-time-end", "2026-01-05"]
        expected = []
        for run in (1, 2):
            run_dbt(["build", "--vars", f"run: {run}", *end])
            expected.append(self.contents(project))
        project.adapter.drop_schema(project.adapter.Relation.create(schema=project.test_schema))
        os.environ["ICEBERG_STREAM_PUBLISH"] = "atomic"
        for run in (1, 2):
            run_dbt(["build", "--vars", f"run: {run}", *end])
            contents = self.contents(project)
            for name, value in expected[run - 1].items():
                assert (name, contents[name]) == (name, value)
        assert published(project, "from_source") == published(project, "deleted")
