{#- For hooks and operations. See macros.yml for the arguments. -#}
{% macro maintain_table(table, steps=none, sort=none, options=none) %}
  {{ return(adapter.dispatch('maintain_table', 'dbt')(table, steps, sort, options)) }}
{% endmacro %}

{% macro iceberg_stream__maintain_table(table, steps, sort, options) %}
  {%- if execute -%}
    {% do adapter.maintain_table(table, {'steps': steps, 'sort': sort, 'options': options}) %}
  {%- endif -%}
{% endmacro %}
