{% materialization stream, adapter='iceberg_stream' %}
  {%- set layout = adapter.check_model(model) -%}
  {%- set existing = iceberg_stream__load_writable_relation(this, rows_only=not should_full_refresh()) -%}
  {%- set relation = this.incorporate(type='table') -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks) }}

  {% if existing is none %}
    {% do run_query(iceberg_stream__get_create_stream_table_sql(relation, layout, adapter.stream_columns(model, compiled_code))) %}
    {% do iceberg_stream__finish_table(relation, layout) %}
  {% elif existing.is_view %}
    {% do exceptions.raise_compiler_error(
        relation.render() ~ ' is a view: drop it first, for a stream cannot take its place in one step.') %}
  {% else %}
    {% do iceberg_stream__apply_layout(relation, layout) %}
  {% endif %}
  {%- set done = adapter.run_stream(model, relation, compiled_code, should_full_refresh(), graph.nodes, selected_resources) -%}
  {% do store_result('main', response=done, agate_table=none) %}
  {% do persist_docs(relation, model) %}

  {{ run_hooks(post_hooks) }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {% do iceberg_stream__warn_of_row_drop(relation) %}

  {{ return({'relations': [relation]}) }}
{% endmaterialization %}

{% macro iceberg_stream__get_create_stream_table_sql(relation, layout, columns) -%}
  {%- do layout.require_free_names(columns | map(attribute=0) | list) %}
  create table {{ relation.render() }} (
    {%- for name, type in columns %}
    {{ adapter.quote(name) }} {{ type }}{{ ',' if not loop.last }}
    {%- endfor %}
  ) using iceberg
  {{ layout.create_clauses }}
  {{ iceberg_stream__get_relation_comment_clause() }}
{%- endmacro %}
