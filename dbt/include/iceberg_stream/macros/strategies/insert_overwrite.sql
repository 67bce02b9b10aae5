{#- Replace the partitions that the increment has rows for, or a whole table without partitions. As an
    option of the statement and not a setting, the mode leaves the session as it is. -#}
{% macro iceberg_stream__get_incremental_insert_overwrite_sql(arg_dict) -%}
  {%- set relation = arg_dict['target_relation'] -%}
  {%- set columns = iceberg_stream__get_quoted_names(arg_dict['dest_columns']) -%}
  {%- set mode = 'dynamic' if adapter.is_partitioned(relation) else 'static' -%}
  insert overwrite table {{ relation.render() }} with ('overwrite-mode' = '{{ mode }}') ({{ columns }})
  select {{ columns }} from {{ arg_dict['temp_relation'].render() }}
{%- endmacro %}
