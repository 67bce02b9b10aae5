{#- For the queries of models that are materialized as streams. See macros.yml for their arguments. -#}
{% macro stream(relation) %}
  {{ return(adapter.dispatch('stream', 'dbt')(relation, **kwargs)) }}
{% endmacro %}

{% macro iceberg_stream__stream(relation) %}
  {%- if not execute -%}
    {{ return('__stream_source') }}
  {%- endif -%}
  {%- if relation is not defined or relation is string -%}
    {% do exceptions.raise_compiler_error(
        "stream(…) takes a source or a model: stream(source('schema', 'name')) or stream(ref('model')).") %}
  {%- endif -%}
  {%- set ns = namespace(configured=none) -%}
  {%- for node in graph.sources.values() if node.relation_name == relation.render() -%}
    {%- set own = (node.config.get('meta') or {}).get('stream') or (node.meta or {}).get('stream') or {} -%}
    {%- set shared = (node.source_meta or {}).get('stream') or {} -%}
    {%- set ns.configured = dict(shared, **own) if own is mapping and shared is mapping else own or shared -%}
  {%- endfor -%}
  {{ return(adapter.declare_stream(model, relation, ns.configured, kwargs)) }}
{% endmacro %}

{% macro stream_table(relation, route) %}
  {{ return(adapter.dispatch('stream_table', 'dbt')(relation, route)) }}
{% endmacro %}

{% macro iceberg_stream__stream_table(relation, route) %}
  {{ return(relation.incorporate(path={'identifier': relation.identifier ~ '__' ~ route | lower})) }}
{% endmacro %}
