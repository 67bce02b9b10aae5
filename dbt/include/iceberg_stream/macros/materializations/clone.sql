{#- A clone is a table with the original's files, or a view if the original cannot be cloned. -#}
{% materialization clone, adapter='iceberg_stream' %}
  {%- if not defer_relation -%}
    {{ log('No relation found in state manifest for ' ~ model.unique_id, info=True) }}
    {{ return({'relations': []}) }}
  {%- endif -%}
  {%- if this.branch -%}
    {% do exceptions.raise_compiler_error(
        model.unique_id ~ ' cannot be cloned to the branch `' ~ this.branch ~ '`: remove `write_branch` from this run.') %}
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
  {%- set original = load_cached_relation(defer_relation) -%}
  {%- set relation = this.incorporate(type='table') -%}
  {%- if original is not none and original.is_table and can_clone_table()
        and iceberg_stream__build_clone(existing, relation, original) -%}
    {{ return({'relations': [relation]}) }}
  {%- endif -%}
  {%- set relation = this.incorporate(type='view') -%}
  {% do iceberg_stream__build_view(existing, relation, 'select * from ' ~ defer_relation.render()) %}
  {{ return({'relations': [relation]}) }}
{% endmaterialization %}

{#- Return whether the original could be cloned. -#}
{% macro iceberg_stream__build_clone(existing, relation, original) %}
  {%- set staged = iceberg_stream__make_staged_relation(relation) if existing is not none else none -%}
  {%- set response = adapter.clone_table(original, staged or relation, relation) -%}
  {% if not response %}
    {% do adapter.forget_staged() %}
    {{ return(False) }}
  {% endif %}
  {% if staged %}
    {% do iceberg_stream__swap_in(existing, staged, relation) %}
  {% endif %}
  {% do store_result('main', response=response, agate_table=none) %}
  {{ return(True) }}
{% endmacro %}

{% macro iceberg_stream__can_clone_table() %}
  {{ return(True) }}
{% endmacro %}
