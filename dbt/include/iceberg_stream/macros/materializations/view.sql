{% materialization view, adapter='iceberg_stream' %}
  {%- do adapter.check_model(model) -%}
  {%- do adapter.require_views() -%}
  {%- do adapter.stage_model(this, model) -%}
  {%- set existing = load_cached_relation(this) -%}
  {%- set relation = this.incorporate(type='view') -%}

  {{ run_hooks(pre_hooks) }}

  {% do iceberg_stream__build_view(existing, relation, adapter.read_at(sql, this, model)) %}
  {% do persist_docs(relation, model) %}

  {{ run_hooks(post_hooks) }}

  {{ return({'relations': [relation]}) }}
{% endmaterialization %}
