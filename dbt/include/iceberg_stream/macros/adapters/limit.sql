{#- What `dbt show` runs. -#}
{% macro iceberg_stream__get_limit_sql(sql, limit) -%}
  {%- if adapter.takes_limit(sql) -%}
    {{ default__get_limit_sql(adapter.read_at(sql, this, model), limit) }}
  {%- else -%}
    {{ sql }}
  {%- endif -%}
{%- endmacro %}
