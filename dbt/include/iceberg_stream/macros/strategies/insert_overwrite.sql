{#- Replace the partitions that the increment has rows for, or a whole table without partitions. -#}
{% macro iceberg_stream__get_incremental_insert_overwrite_sql(arg_dict) -%}
  {%- set relation = arg_dict['target_relation'] -%}
  {%- set columns = iceberg_stream__get_quoted_names(arg_dict['dest_columns']) -%}
  {%- if adapter.is_partitioned(relation) -%}
    {#- After a `set`, no other model uses this session. -#}
    {% do run_query('set spark.sql.sources.partitionOverwriteMode = dynamic') %}
  {%- endif -%}
  insert overwrite table {{ relation.render() }} ({{ columns }})
  select {{ columns }} from {{ arg_dict['temp_relation'].render() }}
{%- endmacro %}
