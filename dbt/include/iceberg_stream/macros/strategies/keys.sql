{% macro iceberg_stream__get_key_list(unique_key) %}
  {{ return([unique_key] if unique_key is string else (unique_key or [])) }}
{% endmacro %}

{#- In the letter case of the columns: Spark's MERGE fails if a statement spells a column in two ways. -#}
{% macro iceberg_stream__get_spelled_keys(unique_key, columns) %}
  {%- set names = {} -%}
  {%- for column in columns -%}{%- do names.update({column.name | lower: column.name}) -%}{%- endfor -%}
  {%- set keys = [] -%}
  {%- for key in iceberg_stream__get_key_list(unique_key) -%}
    {%- do keys.append(names.get(key | replace('`', '') | lower, key)) -%}
  {%- endfor -%}
  {{ return(keys) }}
{% endmacro %}

{#- Null-safe: otherwise a null key would insert a new row on each run. -#}
{% macro iceberg_stream__get_key_match_sql(unique_key, left, right) -%}
  {%- for key in iceberg_stream__get_key_list(unique_key) -%}
    {{ left }}.{{ iceberg_stream__quote_key(key) }} <=> {{ right }}.{{ iceberg_stream__quote_key(key) }}{{ ' and ' if not loop.last }}
  {%- endfor -%}
{%- endmacro %}

{#- Spark compares a key before it stores it: each run would insert a key again that the table rounds. -#}
{% macro iceberg_stream__check_keys(staging, of_table) %}
  {%- for key in adapter.lossy_keys(model, staging, of_table) -%}
    {%- for row in run_query(key.sql).rows -%}
      {% do exceptions.raise_compiler_error(
          model.unique_id ~ ' returns ' ~ row[0] ~ ' in `' ~ key.name ~ '`, a column of its `unique_key`, which the'
          ~ " table's type " ~ key.type ~ ' does not store as it is. Each run could insert the row again, or update'
          ~ ' another row. Nothing was written. ' ~ key.cure ~ ' in the query, or rebuild the table with --full-refresh.') %}
    {%- endfor -%}
  {%- endfor -%}
{% endmacro %}

{% macro iceberg_stream__quote_key(key) -%}
  {{ adapter.quote(key | replace('`', '')) }}
{%- endmacro %}

{% macro iceberg_stream__get_quoted_names(columns, alias=none) -%}
  {%- for column in columns -%}
    {{ alias ~ '.' if alias }}{{ column.quoted }}{{ ', ' if not loop.last }}
  {%- endfor -%}
{%- endmacro %}

{#- Each predicate is one operand of `and`, whatever is in it. -#}
{% macro iceberg_stream__get_predicate_list(predicates) %}
  {%- set operands = [] -%}
  {%- for predicate in ([predicates] if predicates is string else (predicates or [])) -%}
    {%- do operands.append(adapter.as_operand(predicate)) -%}
  {%- endfor -%}
  {{ return(operands) }}
{% endmacro %}
