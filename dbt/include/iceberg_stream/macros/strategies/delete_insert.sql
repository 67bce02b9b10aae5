{% macro iceberg_stream__get_incremental_delete_insert_sql(arg_dict) -%}
  {%- set keys -%}
    select distinct {% for key in get_key_list(arg_dict['unique_key']) -%}
      {{ quote_key(key) }}{{ ', ' if not loop.last }}
    {%- endfor %} from {{ arg_dict['temp_relation'].render() }}
  {%- endset -%}
  {{ get_delete_insert_sql(arg_dict, get_key_list(arg_dict['unique_key']), keys) }}
{%- endmacro %}

{#- Delete the target's rows with one of the given keys and insert the increment, in one commit: a
    merge whose source has two kinds of rows, keys to delete and rows to insert. -#}
{% macro get_delete_insert_sql(arg_dict, keys, keys_sql) -%}
  {%- set columns = arg_dict['dest_columns'] -%}
  {%- set key_names = keys | map('lower') | list -%}
  merge into {{ arg_dict['target_relation'].render() }} as DBT_INTERNAL_DEST
  using (
    select {{ get_quoted_names(columns) }}, false as __dbt_deletes
    from {{ arg_dict['temp_relation'].render() }}
    union all
    select
      {%- for column in columns %}
      {{ column.quoted if column.name | lower in key_names else 'null' }},
      {%- endfor %}
      true
    from ({{ keys_sql }})
  ) as DBT_INTERNAL_SOURCE
  on {{ get_key_match_sql(keys, 'DBT_INTERNAL_SOURCE', 'DBT_INTERNAL_DEST') }}
    and DBT_INTERNAL_SOURCE.__dbt_deletes
    {%- for predicate in get_predicate_list(arg_dict['incremental_predicates']) %}
    and {{ predicate }}
    {%- endfor %}
  when matched then delete
  when not matched and not DBT_INTERNAL_SOURCE.__dbt_deletes
    then insert ({{ get_quoted_names(columns) }})
    values ({{ get_quoted_names(columns, 'DBT_INTERNAL_SOURCE') }})
{%- endmacro %}
