{#- Replace the batch's range of event_time in one commit. Whole partitions are replaced by metadata
    alone; if the range covers only parts of files, rows are deleted and inserted. -#}
{% macro iceberg_stream__get_incremental_microbatch_sql(arg_dict) -%}
  {%- set relation = arg_dict['target_relation'] -%}
  {%- set event_time = config.get('event_time') -%}
  {%- set column = iceberg_stream__quote_key(event_time) -%}
  {%- set range = adapter.batch_range_sql(relation, model) -%}
  {%- set columns = adapter.get_columns_in_relation(relation) -%}
  {%- if iceberg_stream__replaces_whole_files(relation) and iceberg_stream__has_same_structs(columns, arg_dict['temp_relation']) -%}
    {#- This statement matches columns, and fields of structs, by their positions. -#}
    insert into {{ relation.render() }} replace where {{ range }}
    select {{ iceberg_stream__get_quoted_names(columns) }} from {{ arg_dict['temp_relation'].render() }}
  {%- else -%}
    {%- set keys = 'select distinct ' ~ column ~ ' from ' ~ relation.render() ~ ' where ' ~ range -%}
    {{ iceberg_stream__get_delete_insert_sql(arg_dict, [event_time], keys) }}
  {%- endif -%}
{%- endmacro %}

{#- Whether a batch is a set of whole files, which its statement replaces by metadata alone. -#}
{% macro iceberg_stream__replaces_whole_files(relation) %}
  {%- if config.get('predicates') or config.get('incremental_predicates') -%}
    {{ return(false) }}
  {%- endif -%}
  {{ return(adapter.range_is_aligned(relation, config.get('event_time'), config.get('batch_size'))) }}
{% endmacro %}

{#- Return the plan by which the adapter does the same where files have to be rewritten. -#}
{% macro iceberg_stream__get_microbatch_plan(arg_dict) %}
  {{ return({
      'unique_key': config.get('event_time'),
      'target': 'DBT_INTERNAL_DEST',
      'range': adapter.batch_range_sql(arg_dict['target_relation'], model, 'DBT_INTERNAL_DEST'),
      'updated': [],
      'inserts': true,
      'replaces': true,
  }) }}
{% endmacro %}

{% macro iceberg_stream__has_same_structs(columns, source) -%}
  {%- set structs = {} -%}
  {%- for column in columns if 'struct<' in column.dtype | lower -%}
    {%- do structs.update({column.name | lower: column.dtype}) -%}
  {%- endfor -%}
  {%- set others = [] -%}
  {%- for column in (adapter.get_columns_in_relation(source) if structs else []) -%}
    {%- if structs.get(column.name | lower, column.dtype) != column.dtype -%}
      {%- do others.append(column.name) -%}
    {%- endif -%}
  {%- endfor -%}
  {{ return(not others) }}
{%- endmacro %}
