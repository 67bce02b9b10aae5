{#- Spark's own split_part takes the delimiter as it is, not as a regular expression. -#}
{% macro iceberg_stream__split_part(string_text, delimiter_text, part_number) -%}
  split_part({{ string_text }}, {{ delimiter_text }}, {{ part_number }})
{%- endmacro %}
