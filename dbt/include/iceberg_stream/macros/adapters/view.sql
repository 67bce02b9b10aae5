{% macro iceberg_stream__create_view_as(relation, sql) -%}
  {%- if model.resource_type == 'test' and adapter.is_building() -%}
    {#- `store_failures_as: view`: a view would read relations that are staged, and soon gone. -#}
    {{ return(iceberg_stream__create_table_as(False, relation, sql)) }}
  {%- endif -%}
  {%- set sql = adapter.view_query(relation, sql) -%}
  {%- if config.get('contract').enforced -%}
    {{ get_assert_columns_equivalent(sql) }}
  {%- endif -%}
  {{ config.get('sql_header') or '' }}
  create or replace view {{ relation.render() }}
  {{ iceberg_stream__get_view_columns_clause(sql) }}
  {{ iceberg_stream__get_relation_comment_clause() }}
  {%- set properties = adapter.view_properties(relation) -%}
  {%- if properties %}
  tblproperties (
    {%- for name, value in properties.items() %}
    {{ iceberg_stream__sql_literal(name) }} = {{ iceberg_stream__sql_literal(value) }}{{ "," if not loop.last }}
    {%- endfor %}
  )
  {%- endif %}
  as
  {{ sql }}
{%- endmacro %}

{% macro iceberg_stream__get_view_columns_clause(sql) -%}
  {%- if config.persist_column_docs() and model.columns -%}
    {%- set documented = {} -%}
    {%- for name, column in model.columns.items() -%}
      {%- do documented.update({name | lower: column.description}) -%}
    {%- endfor -%}
    (
    {%- for column in adapter.get_column_schema_from_query(sql) %}
      {{ column.quoted }}
      {%- if documented.get(column.name | lower) %} comment {{ iceberg_stream__sql_literal(documented[column.name | lower]) }}{% endif %}
      {{- ',' if not loop.last }}
    {%- endfor %}
    )
  {%- endif -%}
{%- endmacro %}
