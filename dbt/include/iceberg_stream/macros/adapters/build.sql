{#- Build a table or a view, whatever has its name. A relation of the same type is replaced in one
    commit. For another type, the new relation is built beside the old one, which is dropped
    afterwards: no catalog can replace a table by a view in one step. -#}
{% macro iceberg_stream__build_table(existing, relation, select, layout) %}
  {%- if relation.branch -%}
    {% do iceberg_stream__build_on_branch(existing, relation, select, layout) %}
    {{ return(none) }}
  {%- endif -%}
  {%- set staged = iceberg_stream__make_staged_relation(relation) if existing is not none and existing.is_view else none -%}
  {% call statement('main') -%}
    {{ get_create_table_as_sql(False, staged or relation, select) }}
  {%- endcall %}
  {% do iceberg_stream__finish_table(staged or relation, layout) %}
  {% if staged %}
    {% do iceberg_stream__swap_in(existing, staged, relation) %}
  {% endif %}
{% endmacro %}

{% macro iceberg_stream__build_view(existing, relation, sql) %}
  {%- set staged = iceberg_stream__make_staged_relation(relation) if existing is not none and existing.is_table else none -%}
  {% call statement('main') -%}
    {{ get_create_view_as_sql(staged or relation, sql) }}
  {%- endcall %}
  {% if staged %}
    {% do iceberg_stream__swap_in(existing, staged, relation) %}
  {% endif %}
{% endmacro %}

{% macro iceberg_stream__swap_in(existing, staged, relation) %}
  {%- set change = 'is cloned again' if existing.type == relation.type
      else 'changes from ' ~ existing.type ~ ' to ' ~ relation.type -%}
  {{ log(relation.render() ~ ' ' ~ change
         ~ ': readers find nothing for the moment between drop and rename', info=True) }}
  {% do adapter.drop_relation(existing) %}
  {#- From here on the new one is the only version, which must stay whatever fails. -#}
  {% do adapter.forget_staged() %}
  {% do adapter.cache_added(staged) %}
  {% do adapter.rename_relation(staged, relation) %}
{% endmacro %}

{#- The model's rows as a select: a Python model runs first and becomes a temporary view. -#}
{% macro iceberg_stream__get_model_select(compiled_code, language) %}
  {%- if language == 'python' -%}
    {%- set view = make_temp_relation(this, '__dbt_py') -%}
    {% do adapter.run_python_model(model, iceberg_stream__get_python_code(compiled_code), view.identifier) %}
    {{ return('select * from ' ~ view.render()) }}
  {%- endif -%}
  {{ return(iceberg_stream__get_reading_sql(compiled_code)) }}
{% endmacro %}

{#- The model's query, with the version of `read_at`. With `read_deletes` it reads tables with equality deletes at snapshots that
    have the same rows, and deletes by position only. -#}
{% macro iceberg_stream__get_reading_sql(sql) %}
  {{ return(adapter.read_deletes_once(adapter.read_at(sql, this, model), config.get('read_deletes', 'spark'))) }}
{% endmacro %}

{% macro iceberg_stream__get_python_code(compiled_code) %}
  {{ return(compiled_code ~ '\n' ~ py_script_postfix(model)) }}
{% endmacro %}

{#- `warn_row_drop`. With --warn-error the model fails here, and models that read it are skipped. -#}
{% macro iceberg_stream__warn_of_row_drop(relation) %}
  {%- set warning = adapter.row_drop_warning(relation, model) -%}
  {% if warning %}
    {% do exceptions.warn(warning) %}
  {% endif %}
{% endmacro %}

{#- `skip_unchanged`: return the relation if it is what its last build left, from the same code and
    inputs, so that the materialization has nothing to do. -#}
{% macro iceberg_stream__leave_unchanged(relation, is_increment=false) %}
  {%- set response = adapter.skip_unchanged(relation, model, is_increment, should_full_refresh()) -%}
  {% if not response %}{{ return(none) }}{% endif %}
  {% do store_result('main', response=response, agate_table=none) %}
  {% if not relation.is_view %}
    {% do adapter.tag_model(relation, model) %}
  {% endif %}
  {{ return(relation) }}
{% endmacro %}
