{#- For hooks and operations: rows of a table that have a key of the query's take its other columns. -#}
{% macro update_rows(relation, query, unique_key) %}
  {%- if execute -%}
    {%- set done = adapter.change_rows(relation, query, unique_key, 'update') -%}
    {{ log(relation.render() ~ ': ' ~ done.rows_affected ~ ' rows updated') }}
  {%- endif -%}
{% endmacro %}

{#- For hooks and operations: rows of a table that have a key of the query's go. -#}
{% macro delete_rows(relation, query, unique_key) %}
  {%- if execute -%}
    {%- set done = adapter.change_rows(relation, query, unique_key, 'delete') -%}
    {{ log(relation.render() ~ ': ' ~ done.rows_affected ~ ' rows deleted') }}
  {%- endif -%}
{% endmacro %}
