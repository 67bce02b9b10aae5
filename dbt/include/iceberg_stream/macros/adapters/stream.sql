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

{% macro variable_scale_decimal(value, precision, scale) %}
  {{ return(adapter.dispatch('variable_scale_decimal', 'dbt')(value, precision, scale)) }}
{% endmacro %}

{% macro iceberg_stream__variable_scale_decimal(value, precision, scale) -%}
  {#- The bytes are the highest first; those of negative numbers begin with a bit that is set. -#}
  {%- set octets -%}
    transform(sequence(1, length({{ value }}.value)), i -> cast(conv(hex(substring({{ value }}.value, i, 1)), 16, 10) as decimal(38, 0)))
  {%- endset -%}
  {%- set digits -%}
    reduce({{ octets }}, cast(if(hex({{ value }}.value) >= '8', -1, 0) as decimal(38, 0)), (sum, octet) -> cast(sum * 256 + octet as decimal(38, 0)))
  {%- endset -%}
  {%- set number -%}
    try_cast(concat(cast({{ digits }} as string), 'e', cast(-{{ value }}.scale as string)) as decimal({{ precision }}, {{ scale }}))
  {%- endset -%}
  {#- The number is that of the digits, unless it was rounded. -#}
  case
    when {{ value }} is null then null
    when try_cast(concat(cast({{ number }} as string), 'e', cast({{ value }}.scale as string)) as decimal(38, 0)) = {{ digits }}
      then {{ number }}
    else cast(raise_error(concat('A number of the scale ', {{ value }}.scale, ' does not fit decimal({{ precision }}, {{ scale }}): choose another type in variable_scale_decimal.')) as decimal({{ precision }}, {{ scale }}))
  end
{%- endmacro %}
