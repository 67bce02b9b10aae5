{#- Iceberg cannot clone a table, so the clone is a view of the other target's relation. -#}
{% materialization clone, adapter='iceberg_stream' %}
  {%- if not defer_relation -%}
    {{ log('No relation found in state manifest for ' ~ model.unique_id, info=True) }}
    {{ return({'relations': []}) }}
  {%- endif -%}
  {%- set existing = load_cached_relation(this) -%}
  {%- if existing and not flags.FULL_REFRESH -%}
    {{ log('Relation ' ~ existing ~ ' already exists', info=True) }}
    {{ return({'relations': []}) }}
  {%- endif -%}
  {%- if defer_relation.render() == this.render() -%}
    {{ log('Target relation and defer relation are the same, skipping clone for relation: ' ~ this.render()) }}
    {{ return({'relations': []}) }}
  {%- endif -%}
  {%- set relation = this.incorporate(type='view') -%}
  {% do iceberg_stream__build_view(existing, relation, 'select * from ' ~ defer_relation.render()) %}
  {{ return({'relations': [relation]}) }}
{% endmaterialization %}

{% macro iceberg_stream__can_clone_table() %}
  {{ return(False) }}
{% endmacro %}
