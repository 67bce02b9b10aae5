{#- Spark's split_part takes the delimiter literally, not as a regular expression. -#}
{% macro iceberg_stream__split_part(string_text, delimiter_text, part_number) -%}
  split_part({{ string_text }}, {{ delimiter_text }}, {{ part_number }})
{%- endmacro %}
