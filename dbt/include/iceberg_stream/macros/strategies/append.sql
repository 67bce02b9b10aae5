{% macro iceberg_stream__get_incremental_append_sql(arg_dict) -%}
  {%- set columns = iceberg_stream__get_quoted_names(arg_dict['dest_columns']) -%}
  {#- By name also matches fields of structs by their names, where a list of columns would not. #}
  insert into {{ arg_dict['target_relation'].render() }} by name
  select {{ columns }} from {{ arg_dict['temp_relation'].render() }}
{%- endmacro %}

{% macro iceberg_stream__get_incremental_default_sql(arg_dict) -%}
  {%- if arg_dict['unique_key'] -%}
    {{ get_incremental_merge_sql(arg_dict) }}
  {%- else -%}
    {{ get_incremental_append_sql(arg_dict) }}
  {%- endif -%}
{%- endmacro %}
