{% materialization table, adapter='iceberg_stream', supported_languages=['sql', 'python'] %}
  {%- set layout = adapter.check_model(model) -%}
  {%- set unchanged = iceberg_stream__leave_unchanged(this.incorporate(type='table')) -%}
  {% if unchanged %}{{ return({'relations': [unchanged]}) }}{% endif %}

  {%- set existing = iceberg_stream__load_writable_relation(this) -%}
  {%- set relation = this.incorporate(type='table') -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks) }}

  {%- set view = make_temp_relation(this, '__dbt_py') -%}
  {%- if model['language'] == 'python' -%}
    {%- set built = adapter.build_python_model(
        relation, iceberg_stream__get_python_code(compiled_code), layout, model, view.identifier) -%}
  {%- endif -%}
  {% if built %}
    {% do store_result('main', response=built, agate_table=none) %}
  {% else %}
    {%- set select = 'select * from ' ~ view.render() if model['language'] == 'python'
        else iceberg_stream__get_reading_sql(compiled_code) -%}
    {% do iceberg_stream__build_table(existing, relation, select, layout) %}
  {% endif %}
  {% do persist_docs(relation, model) %}

  {{ run_hooks(post_hooks) }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {% do adapter.tag_model(relation, model) %}
  {% do adapter.maintain_model(relation, model) %}
  {% do adapter.record_build(relation, model) %}
  {% do iceberg_stream__warn_of_row_drop(relation) %}

  {{ return({'relations': [relation]}) }}
{% endmaterialization %}
