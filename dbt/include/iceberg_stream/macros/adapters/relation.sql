{% macro iceberg_stream__make_temp_relation(base_relation, suffix='__dbt_tmp') %}
  {#- Unique for each node and run: models with the same name in two schemas must not share a view. -#}
  {%- set identifier = base_relation.identifier ~ suffix ~ '_' ~ adapter.unique_suffix() -%}
  {%- do return(api.Relation.create(identifier=identifier, type='view')) -%}
{% endmacro %}

{#- With the suffix `__dbt_staged_` it is complete when the relation that it replaces is dropped. -#}
{% macro iceberg_stream__make_staged_relation(relation, suffix='__dbt_staged_') %}
  {%- set identifier = relation.identifier ~ suffix ~ adapter.unique_suffix() -%}
  {%- set staged = relation.incorporate(path={'identifier': identifier}) -%}
  {%- do adapter.note_staged(staged) -%}
  {%- do return(staged) -%}
{% endmacro %}

{% macro iceberg_stream__drop_relation(relation) -%}
  {%- if relation.schema -%}
    {% do adapter.drop_from_catalog(relation) %}
  {%- else -%}
    {% do run_query('drop view if exists ' ~ relation.render()) %}
  {%- endif -%}
{%- endmacro %}

{% macro iceberg_stream__rename_relation(from_relation, to_relation) -%}
  {#- Iceberg reads the first part of the new name as a namespace: leave the catalog out. -#}
  {% call statement('rename_relation') -%}
    alter {{ from_relation.type }} {{ from_relation.render() }}
    rename to {{ to_relation.include(database=(from_relation.is_view)).render() }}
  {%- endcall %}
{%- endmacro %}

{% macro iceberg_stream__truncate_relation(relation) -%}
  {% call statement('truncate_relation') -%}
    delete from {{ relation.render() }} where true
  {%- endcall %}
{%- endmacro %}

{% macro iceberg_stream__get_columns_in_relation(relation) -%}
  {{ return(adapter.get_columns_in_relation(relation)) }}
{%- endmacro %}

{% macro iceberg_stream__generate_database_name(custom_database_name=none, node=none) -%}
  {%- set catalog = adapter.build_catalog_relation(node) if node is not none else none -%}
  {%- if catalog -%}
    {{ return(catalog.catalog_database) }}
  {%- endif -%}
  {{ return(custom_database_name | trim if custom_database_name else target.database) }}
{%- endmacro %}

{% macro iceberg_stream__create_schema(relation) -%}
  {% do adapter.create_schema(relation) %}
{%- endmacro %}

{% macro iceberg_stream__drop_schema(relation) -%}
  {% do adapter.drop_schema(relation) %}
{%- endmacro %}

{#- Return a model's existing relation, or fail if the user may not write to it. Checking first avoids
    computing rows that cannot be written. -#}
{% macro iceberg_stream__load_writable_relation(relation, rows_only=false) %}
  {% do adapter.check_tag(relation, model) %}
  {% do adapter.stage_model(relation, model) %}
  {%- set existing = load_cached_relation(relation) -%}
  {% do adapter.check_write(existing, rows_only or relation.branch is not none) %}
  {% if relation.branch and existing is not none and existing.is_table and adapter.needs_branch(relation, model) %}
    {% do iceberg_stream__create_branch(relation) %}
  {% endif %}
  {{ return(existing) }}
{% endmacro %}
