{#- In a string literal of Spark, a backslash escapes the next character: `C:\new` would have a line break. -#}
{% macro iceberg_stream__escape_single_quotes(expression) -%}
  {{ expression | replace("\\", "\\\\") | replace("'", "\\'") }}
{%- endmacro %}
