{#- Data tests that compare versions of a table. See macros.yml for the arguments. -#}
{% test row_drop(model, share=0.1, since=none) %}
  {{ return(adapter.dispatch('test_row_drop', 'dbt')(model, share, since)) }}
{% endtest %}

{% macro iceberg_stream__test_row_drop(model, share, since) -%}
  {%- set rows = adapter.row_counts(model, share, since, config.get('at'), config.get('where')) -%}
  {% do iceberg_stream__warn_if_not_compared(rows) %}
  select rows_before, rows_after, 1 - try_divide(rows_after, rows_before) as share_lost
  from (select {{ rows.before }} as rows_before, {{ rows.after }} as rows_after)
  where rows_after < rows_before * (1 - {{ share }})
{%- endmacro %}

{% test unchanged_history(model, since=none, column=none, older_than=none, exclude_columns=none) %}
  {{ return(adapter.dispatch('test_unchanged_history', 'dbt')(model, since, column, older_than, exclude_columns)) }}
{% endtest %}

{% macro iceberg_stream__test_unchanged_history(model, since, column, older_than, exclude_columns) -%}
  {%- set period = {
      'column': column,
      'older_than': older_than,
      'where': config.get('where'),
      'exclude_columns': exclude_columns,
  } -%}
  {%- set rows = adapter.closed_rows(model, since, config.get('at'), period) -%}
  {% do iceberg_stream__warn_if_not_compared(rows) %}
  {%- if rows.before %}
  with dbt_before as ({{ rows.before }}), dbt_after as ({{ rows.after }})
  select 'removed' as dbt_change, * from (select * from dbt_before except all select * from dbt_after)
  union all
  select 'added' as dbt_change, * from (select * from dbt_after except all select * from dbt_before)
  {%- else %}
  select 'none' as dbt_change where false
  {%- endif -%}
{%- endmacro %}

{% macro iceberg_stream__warn_if_not_compared(rows) %}
  {%- if execute and rows.warning -%}
    {% do exceptions.warn(model.unique_id ~ ': ' ~ rows.warning) %}
  {%- endif -%}
{% endmacro %}

{#- What a data test reads. `at` is a version; tests that compare versions find theirs themselves. -#}
{% macro iceberg_stream__get_where_subquery(relation) -%}
  {%- set own = ['macro.dbt_iceberg_stream.test_row_drop', 'macro.dbt_iceberg_stream.test_unchanged_history'] -%}
  {%- if model.depends_on.macros | select('in', own) | list -%}
    {% do return(relation) %}
  {%- endif -%}
  {%- set at = config.get('at') -%}
  {%- set where = adapter.as_operand(config.get('where')) -%}
  {%- set version = relation if at is none else adapter.relation_at(relation, at) -%}
  {%- if at is none and not where -%}
    {% do return(relation) %}
  {%- endif -%}
  {%- set filtered -%}
    (select * from {{ version }}{% if where %} where {{ where }}{% endif %}) dbt_subquery
  {%- endset -%}
  {% do return(filtered) %}
{%- endmacro %}

{#- As dbt's own, but the expressions of the config may end with comments. -#}
{% macro iceberg_stream__get_test_sql(main_sql, fail_calc, warn_if, error_if, limit) -%}
  {{ default__get_test_sql(main_sql, adapter.as_operand(fail_calc), warn_if ~ '\n', error_if ~ '\n', limit) }}
{%- endmacro %}
