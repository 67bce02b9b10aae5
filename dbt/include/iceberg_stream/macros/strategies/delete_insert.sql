{% macro iceberg_stream__get_delete_insert_merge_sql(target, source, unique_key, dest_columns, incremental_predicates=none) -%}
  {%- set keys = iceberg_stream__get_key_list(unique_key) -%}
  {%- set keys_sql -%}
    select distinct {% for key in keys -%}
      {{ iceberg_stream__quote_key(key) }}{{ ', ' if not loop.last }}
    {%- endfor %} from {{ source.render() }}
  {%- endset -%}
  {%- set arguments = {
      'target_relation': target, 'temp_relation': source,
      'dest_columns': dest_columns, 'incremental_predicates': incremental_predicates} -%}
  {{ iceberg_stream__get_delete_insert_sql(arguments, keys, keys_sql) }}
{%- endmacro %}

{#- Return the plan by which the adapter does the same. Keys are renamed, so that a name without an alias in
    a predicate means the target's column. -#}
{% macro iceberg_stream__get_delete_insert_plan(arg_dict) %}
  {%- set keys, on = [], [] -%}
  {%- for key in iceberg_stream__get_key_list(arg_dict['unique_key']) -%}
    {%- set name = iceberg_stream__quote_key(key) -%}
    {%- do keys.append(name ~ ' as __dbt_' ~ loop.index) -%}
    {%- do on.append('DBT_INTERNAL_SOURCE.__dbt_' ~ loop.index ~ ' <=> DBT_INTERNAL_DEST.' ~ name) -%}
  {%- endfor -%}
  {%- set on = on + iceberg_stream__get_predicate_list(arg_dict['incremental_predicates']) -%}
  {{ return({
      'unique_key': arg_dict['unique_key'],
      'target': 'DBT_INTERNAL_DEST',
      'source': 'DBT_INTERNAL_SOURCE',
      'keys': '(select ' ~ keys | join(', ') ~ ' from ' ~ arg_dict['temp_relation'] ~ ')',
      'on': on | join(' and '),
      'updated': [],
      'inserts': true,
      'replaces': true,
  }) }}
{% endmacro %}

{#- Delete the target's rows with one of the keys and insert the increment, in one commit. It is a
    merge whose source has two kinds of rows: keys to delete and rows to insert. The source's columns
    are numbered, so that a name without an alias in a predicate means the target's column. -#}
{% macro iceberg_stream__get_delete_insert_sql(arg_dict, keys, keys_sql) -%}
  {%- set columns = arg_dict['dest_columns'] -%}
  {%- set numbers = iceberg_stream__get_column_numbers(columns) -%}
  {%- set key_names = keys | map('replace', '`', '') | map('lower') | list -%}
  merge into {{ arg_dict['target_relation'].render() }} as DBT_INTERNAL_DEST
  using (
    select
      {%- for column in columns %}
      {{ column.quoted }} as __dbt_{{ loop.index }},
      {%- endfor %}
      false as __dbt_deletes
    from {{ arg_dict['temp_relation'].render() }}
    union all
    select
      {%- for column in columns %}
      {{ column.quoted if column.name | lower in key_names else 'null' }},
      {%- endfor %}
      true
    from ({{ keys_sql }})
  ) as DBT_INTERNAL_SOURCE
  on DBT_INTERNAL_SOURCE.__dbt_deletes
    {%- for key in key_names %}
    and DBT_INTERNAL_SOURCE.__dbt_{{ numbers[key] }} <=> DBT_INTERNAL_DEST.{{ adapter.quote(key) }}
    {%- endfor %}
    {%- for predicate in iceberg_stream__get_predicate_list(arg_dict['incremental_predicates']) %}
    and {{ predicate }}
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

{% macro iceberg_stream__get_column_numbers(columns) %}
  {%- set numbers = {} -%}
  {%- for column in columns -%}
    {%- do numbers.update({column.name | lower: loop.index}) -%}
  {%- endfor -%}
  {{ return(numbers) }}
{% endmacro %}
