{% macro iceberg_stream__get_limit_sql(sql, limit) -%}
  {%- if adapter.takes_limit(sql) -%}
    {{ default__get_limit_sql(sql, limit) }}
  {%- else -%}
    {{ sql }}
  {%- endif -%}
{%- endmacro %}
