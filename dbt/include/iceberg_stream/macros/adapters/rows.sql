{#- For hooks and operations. See macros.yml for their arguments. -#}
{% macro update_rows(relation, query, unique_key) %}
  {{ return(adapter.dispatch('update_rows', 'dbt')(relation, query, unique_key)) }}
{% endmacro %}

{% macro iceberg_stream__update_rows(relation, query, unique_key) %}
  {%- if execute -%}
    {%- set done = adapter.change_rows(relation, query, unique_key, 'update') -%}
    {{ log(relation.render() ~ ': ' ~ done.rows_affected ~ ' rows updated') }}
  {%- endif -%}
{% endmacro %}

{% macro delete_rows(relation, query, unique_key) %}
  {{ return(adapter.dispatch('delete_rows', 'dbt')(relation, query, unique_key)) }}
{% endmacro %}

{% macro iceberg_stream__delete_rows(relation, query, unique_key) %}
  {%- if execute -%}
    {%- set done = adapter.change_rows(relation, query, unique_key, 'delete') -%}
    {{ log(relation.render() ~ ': ' ~ done.rows_affected ~ ' rows deleted') }}
  {%- endif -%}
{% endmacro %}
