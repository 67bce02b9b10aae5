{#- Replace the batch's range of event_time in one commit. Whole partitions are replaced by metadata
    alone; if the range covers only parts of files, rows are deleted and inserted. -#}
{% macro iceberg_stream__get_incremental_microbatch_sql(arg_dict) -%}
  {%- set relation = arg_dict['target_relation'] -%}
  {%- set event_time = config.get('event_time') -%}
  {%- set column = iceberg_stream__quote_key(event_time) -%}
  {%- set range = adapter.batch_range_sql(relation, model) -%}
  {%- if adapter.range_is_aligned(relation, event_time, config.get('batch_size')) -%}
    {#- This statement has no column list: the columns must be in the table's order. -#}
    {%- set columns = iceberg_stream__get_quoted_names(adapter.get_columns_in_relation(relation)) -%}
    insert into {{ relation.render() }} replace where {{ range }}
    select {{ columns }} from {{ arg_dict['temp_relation'].render() }}
  {%- else -%}
    {%- set keys = 'select distinct ' ~ column ~ ' from ' ~ relation.render() ~ ' where ' ~ range -%}
    {{ iceberg_stream__get_delete_insert_sql(arg_dict, [event_time], keys) }}
  {%- endif -%}
{%- endmacro %}
