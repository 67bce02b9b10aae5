{% macro iceberg_stream__alter_relation_add_remove_columns(relation, add_columns, remove_columns) %}
  {% do iceberg_stream__check_column_changes(relation, add_columns or [], remove_columns or []) %}
  {% if add_columns %}
    {% do run_query(iceberg_stream__get_add_columns_sql(relation, add_columns)) %}
  {% endif %}
  {% if remove_columns %}
    {% do run_query(iceberg_stream__get_drop_columns_sql(relation, remove_columns)) %}
  {% endif %}
{% endmacro %}

{% macro iceberg_stream__check_column_changes(relation, added, removed) %}
  {% if added or removed %}
    {%- set changes = [] -%}
    {%- for column in added -%}{%- do changes.append('`' ~ column.name ~ '` is new') -%}{%- endfor -%}
    {%- for column in removed -%}{%- do changes.append('`' ~ column.name ~ '` is missing') -%}{%- endfor -%}
    {% do adapter.refuse_on_branch(relation, model, changes | join(', ')) %}
    {% do adapter.refuse_partition_columns(relation, removed) %}
  {% endif %}
{% endmacro %}

{#- As dbt's own, but all changes are checked before the first of them, and columns are dropped last. -#}
{% macro iceberg_stream__sync_column_schemas(on_schema_change, target_relation, schema_changes_dict) %}
  {%- set syncs = on_schema_change == 'sync_all_columns' -%}
  {%- set removed = schema_changes_dict['target_not_in_source'] if syncs else [] -%}
  {%- set retyped = schema_changes_dict['new_target_types'] if syncs else [] -%}
  {% for change in retyped %}
    {% do iceberg_stream__check_column_type_change(target_relation, change.column_name, change.new_type) %}
  {% endfor %}
  {% do iceberg_stream__check_column_changes(target_relation, schema_changes_dict['source_not_in_target'], removed) %}
  {% do alter_relation_add_remove_columns(target_relation, schema_changes_dict['source_not_in_target'], none) %}
  {% for change in retyped %}
    {% do alter_column_type(target_relation, change.column_name, change.new_type) %}
  {% endfor %}
  {% do alter_relation_add_remove_columns(target_relation, none, removed) %}
{% endmacro %}

{% macro iceberg_stream__get_add_columns_sql(relation, columns) -%}
  alter table {{ relation.render() }} add columns (
    {%- for column in columns %}
    {{ column.quoted }} {{ column.data_type }}{{ ',' if not loop.last }}
    {%- endfor %}
  )
{%- endmacro %}

{% macro iceberg_stream__get_drop_columns_sql(relation, columns) -%}
  alter table {{ relation.render() }} drop columns (
    {%- for column in columns %}
    {{ column.quoted }}{{ ',' if not loop.last }}
    {%- endfor %}
  )
{%- endmacro %}

{% macro iceberg_stream__create_columns(relation, columns) %}
  {% if columns %}
    {% do adapter.refuse_on_branch(relation, model, '`' ~ columns | map(attribute='name') | join('`, `') ~ '` is new') %}
    {% do run_query(iceberg_stream__get_add_columns_sql(relation, columns)) %}
  {% endif %}
{% endmacro %}

{% macro iceberg_stream__alter_column_type(relation, column_name, new_column_type) -%}
  {%- if execute -%}
    {% do adapter.refuse_on_branch(relation, model, '`' ~ column_name ~ '` is ' ~ new_column_type) %}
    {% do iceberg_stream__check_column_type_change(relation, column_name, new_column_type) %}
    {% call statement('alter_column_type') -%}
      alter table {{ relation.render() }} alter column {{ adapter.quote(column_name) }} type {{ new_column_type }}
    {%- endcall %}
  {%- endif -%}
{%- endmacro %}

{% macro iceberg_stream__check_column_type_change(relation, column_name, new_column_type) %}
  {%- for column in adapter.get_columns_in_relation(relation) if column.name | lower == column_name | lower -%}
    {%- if column.data_type != new_column_type
          and not column.can_expand_to(api.Column(column_name, new_column_type)) -%}
      {% do exceptions.raise_compiler_error(
          "Column `" ~ column_name ~ "` of " ~ relation.render() ~ " is " ~ column.data_type
          ~ " and the model now returns " ~ new_column_type ~ ". Iceberg changes a type in place"
          ~ " only from int to bigint, float to double, or to a wider decimal of the same scale."
          ~ " Cast the column in the model, or rebuild the table with --full-refresh.") %}
    {%- endif -%}
  {%- endfor -%}
{% endmacro %}

{% macro iceberg_stream__get_columns_in_query(select_sql) %}
  {{ return(adapter.get_column_schema_from_query(select_sql) | map(attribute='name') | list) }}
{% endmacro %}

{#- As dbt's own, but names may differ in their letter case, which means nothing to Spark. -#}
{% macro iceberg_stream__check_for_schema_changes(source_relation, target_relation) %}
  {{ return(adapter.schema_changes(
      adapter.get_columns_in_relation(source_relation), adapter.get_columns_in_relation(target_relation))) }}
{% endmacro %}
