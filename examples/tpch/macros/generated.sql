{#
  The file of one table, as `tpchgen-cli parquet` wrote it.
  TPCH_DATA is the absolute path of the folder with the files.
#}
{% macro generated(table) -%}
    parquet.`file://{{ env_var('TPCH_DATA') }}/{{ table }}.parquet`
{%- endmacro %}
