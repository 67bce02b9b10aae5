{#
  One table's file, as `tpchgen-cli parquet` wrote it.
  TPCH_DATA is the absolute path of the files' folder.
#}
{% macro generated(table) -%}
    parquet.`file://{{ env_var('TPCH_DATA') }}/{{ table }}.parquet`
{%- endmacro %}
