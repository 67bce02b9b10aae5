{% materialization table, adapter='iceberg_stream', supported_languages=['sql', 'python'] %}
  {%- set layout = adapter.check_model(model) -%}
  {%- set existing = load_writable_relation(this) -%}
  {%- set relation = this.incorporate(type='table') -%}

  {{ run_hooks(pre_hooks) }}

  {%- set select = get_model_select(compiled_code, model['language']) -%}
  {% do build_table(existing, relation, select, layout) %}
  {% do persist_docs(relation, model) %}

  {{ run_hooks(post_hooks) }}

  {{ return({'relations': [relation]}) }}
{% endmaterialization %}
