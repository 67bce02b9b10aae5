{% materialization view, adapter='iceberg_stream' %}
  {%- do adapter.check_model(model) -%}
  {%- do adapter.check_view(model, graph.nodes) -%}
  {%- set unchanged = iceberg_stream__leave_unchanged(this.incorporate(type='view')) -%}
  {% if unchanged %}{{ return({'relations': [unchanged]}) }}{% endif %}

  {%- do adapter.require_views(this) -%}
  {%- set relation = this.incorporate(type='view') -%}
  {%- do adapter.stage_model(relation, model) -%}
  {%- set existing = load_cached_relation(this) -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks) }}

  {% do iceberg_stream__build_view(existing, relation, adapter.read_at(sql, this, model)) %}
  {% do persist_docs(relation, model) %}

  {{ run_hooks(post_hooks) }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {% do adapter.record_build(relation, model) %}

  {{ return({'relations': [relation]}) }}
{% endmaterialization %}
