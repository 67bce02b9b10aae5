"""Models of each kind, and what a user could have changed."""

from __future__ import annotations

import json
from typing import Any

TABLE = """
select id, name from {{ ref('people') }}
{% if var('rows', none) %}where (select sum(sin(id)) from range({{ var('rows') }})) > 0{% endif %}
"""


VIEW = "{{ config(materialized='view') }} select * from {{ ref('people') }}"


INCREMENTAL = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id') }}
select id, concat(name, '{{ var("suffix", "") }}') as name from {{ ref('people') }}
"""


SNAPSHOT = """
{% snapshot history %}
{{ config(unique_key='id', strategy='check', check_cols='all', target_schema=schema) }}
select id, concat(name, '{{ var("suffix", "") }}') as name from {{ ref('people') }}
{% endsnapshot %}
"""


DROP = """
{% macro drop_people() %}
  {% do adapter.drop_relation(adapter.get_relation(target.database, target.schema, 'people')) %}
{% endmacro %}
{% macro insert_person() %}
  {% do run_query("insert into " ~ target.schema ~ ".people values (3, 'Joan')") %}
{% endmacro %}
"""


def contents(project: Any) -> str:
    """Every relation of the schema with its current snapshot and columns."""
    lake = project.adapter.catalog
    return json.dumps(
        {
            name: [
                next((s.snapshot_id for s in lake.snapshots((project.test_schema, name))), None),
                [column.name for column in lake.columns((project.test_schema, name))],
            ]
            for name, _ in sorted(lake.relations(project.test_schema))
        }
    )
