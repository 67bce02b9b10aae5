{#- Replace the partitions that the increment has rows for, or a whole table without partitions. As an
    option of the statement and not a setting, the mode leaves the session as it is. -#}
{% macro iceberg_stream__get_incremental_insert_overwrite_sql(arg_dict) -%}
  {%- set relation = arg_dict['target_relation'] -%}
  {%- set columns = iceberg_stream__get_quoted_names(arg_dict['dest_columns']) -%}
  {%- set equal = adapter.partitions_replaced_by(relation, 'DBT_INTERNAL_ROWS', 'DBT_INTERNAL_DEST') -%}
  {%- if equal -%}
    {{ iceberg_stream__get_replace_partitions_sql(arg_dict, equal) }}
  {%- else -%}
  {%- set mode = 'dynamic' if adapter.is_partitioned(relation) else 'static' -%}
  insert overwrite table {{ relation.render() }} with ('overwrite-mode' = '{{ mode }}') by name
  select {{ columns }} from {{ arg_dict['temp_relation'].render() }}
  {%- endif -%}
{%- endmacro %}

{#- Files of an earlier layout are in no partition of this one, so their rows are compared. As with
    `delete+insert`, the source has two kinds of rows: partitions to delete and rows to insert. -#}
{% macro iceberg_stream__get_replace_partitions_sql(arg_dict, equal) -%}
  {%- set columns = arg_dict['dest_columns'] -%}
  {%- set staging = arg_dict['temp_relation'].render() -%}
  merge into {{ arg_dict['target_relation'].render() }} as DBT_INTERNAL_DEST
  using (
    select
      {%- for column in columns %}
      {{ column.quoted }} as __dbt_{{ loop.index }},
      {%- endfor %}
      {%- for _ in equal %}
      null as __dbt_partition_{{ loop.index }},
      {%- endfor %}
      false as __dbt_deletes
    from {{ staging }}
    union all
    select distinct
      {%- for _ in columns %}
      null,
      {%- endfor %}
      {%- for of_source, _ in equal %}
      {{ of_source }},
      {%- endfor %}
      true
    from {{ staging }} as DBT_INTERNAL_ROWS
  ) as DBT_INTERNAL_SOURCE
  on DBT_INTERNAL_SOURCE.__dbt_deletes
    {%- for _, of_target in equal %}
    and DBT_INTERNAL_SOURCE.__dbt_partition_{{ loop.index }} <=> {{ of_target }}
    {%- endfor %}
  when matched then delete
  when not matched and not DBT_INTERNAL_SOURCE.__dbt_deletes
    then insert ({{ iceberg_stream__get_quoted_names(columns) }})
    values (
      {%- for column in columns -%}
      DBT_INTERNAL_SOURCE.__dbt_{{ loop.index }}{{ ', ' if not loop.last }}
      {%- endfor -%}
    )
{%- endmacro %}
