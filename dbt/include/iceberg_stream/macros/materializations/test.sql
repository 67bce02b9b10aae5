{#- dbt's own materialization, unless `skip_unchanged` reuses the result of the last run. -#}
{% materialization test, adapter='iceberg_stream' %}
  {%- set reused = adapter.reuse_test(
      model, iceberg_stream__get_data_test_sql(sql), should_store_failures(), should_full_refresh()) -%}
  {% if reused %}
    {% do store_result('main', response=reused.response, agate_table=reused.table) %}
    {{ return({'relations': []}) }}
  {% endif %}
  {%- set result = dbt.materialization_test_default() -%}
  {% do adapter.keep_test(model, load_result('main').table) %}
  {{ return(result) }}
{% endmaterialization %}

{% macro iceberg_stream__get_data_test_sql(sql) %}
  {{ return(get_test_sql(
      get_limit_subquery_sql(sql, config.get('limit')), config.get('fail_calc'),
      config.get('warn_if'), config.get('error_if'), limit=none)) }}
{% endmacro %}
