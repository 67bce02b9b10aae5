{#- A source or a model as a stream: what stands in the query of a model that is materialized as one.
    What the source is, it says in its `config.meta.stream`, its table there too, and the model in further
    arguments. -#}
{% macro stream(relation) %}
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

{#- The table that a stream with `route_by` has for a route. -#}
{% macro stream_table(relation, route) %}
  {{ return(relation.incorporate(path={'identifier': relation.identifier ~ '__' ~ route | lower})) }}
{% endmacro %}
