{#- Build a model's rows on a branch (`write_branch`). The table, with the columns of the model, and main
    stay as they are. A table that does not exist is built beside, and appears with its branch. -#}
{% macro iceberg_stream__build_on_branch(existing, relation, select, layout) %}
  {% if existing is not none and existing.is_view %}
    {% do exceptions.raise_compiler_error(
        model.unique_id ~ ' writes to the branch `' ~ relation.branch ~ '`, but ' ~ existing.render()
        ~ ' is a view, which has no branches. Build the model once without `write_branch`, or drop the view.') %}
  {% endif %}
  {%- set checked = iceberg_stream__get_contract_checked_sql(select) -%}
  {%- set header = config.get('sql_header') or '' -%}
  {%- set columns = adapter.get_column_schema_from_query(header ~ '\n' ~ checked) -%}
  {% if existing is none %}
    {%- set staged = iceberg_stream__make_staged_relation(relation, '__dbt_new_') -%}
    {%- set staged_main = staged.replace(branch=none) -%}
    {% do run_query(iceberg_stream__get_create_table_sql(
        staged_main, layout, 'select * from (\n' ~ checked ~ '\n) where false')) %}
    {% do iceberg_stream__finish_table(staged_main, layout) %}
    {% do iceberg_stream__create_branch(staged) %}
    {% do iceberg_stream__overwrite_branch(staged, checked, columns, layout, header) %}
    {% do adapter.cache_added(staged_main) %}
    {% do adapter.rename_relation(staged_main, relation.replace(branch=none)) %}
    {% do adapter.forget_staged() %}
  {% else %}
    {% do adapter.check_columns_of_branch(relation, model, columns) %}
    {% do iceberg_stream__apply_layout(relation, layout) %}
    {% do iceberg_stream__overwrite_branch(relation, checked, columns, layout, header) %}
  {% endif %}
{% endmacro %}

{% macro iceberg_stream__overwrite_branch(relation, select, columns, layout, header) %}
  {% call statement('main') -%}
    {{ header }}
    {{ iceberg_stream__get_overwrite_branch_sql(relation, select, columns, layout) }}
  {%- endcall %}
{% endmacro %}

{% macro iceberg_stream__get_overwrite_branch_sql(relation, select, columns, layout) -%}
  {%- set names = iceberg_stream__get_quoted_names(columns) -%}
  insert overwrite table {{ relation.render() }} with ('overwrite-mode' = 'static') by name
  select {{ names }} from (
    {{ select }}
  )
  {%- if layout.select_order %} order by {{ layout.select_order }}{% endif %}
{%- endmacro %}

{#- The branch begins at the current snapshot of main. -#}
{% macro iceberg_stream__create_branch(relation) %}
  {% do run_query('alter table ' ~ relation.replace(branch=none).render()
      ~ ' create branch if not exists ' ~ adapter.quote(relation.branch)) %}
{% endmacro %}
