{% macro iceberg_stream__create_table_as(temporary, relation, compiled_code, language='sql') -%}
  {%- set select = iceberg_stream__get_contract_checked_sql(compiled_code) -%}
  {{ config.get('sql_header') or '' }}
  {%- if temporary %}
    create or replace temporary view {{ relation.render() }} as
    {{ select }}
  {%- else %}
    {{ iceberg_stream__get_create_table_sql(relation, adapter.check_model(model), select) }}
  {%- endif %}
{%- endmacro %}

{% macro iceberg_stream__get_create_table_sql(relation, layout, select) -%}
  {%- set layout = adapter.spell_layout(relation, layout, select, config.get('sql_header')) -%}
  create or replace table {{ relation.render() }} using iceberg
  {{ layout.create_clauses }}
  {{ iceberg_stream__get_relation_comment_clause() }}
  as
  {%- if layout.select_order %}
    select * from (
      {{ select }}
    ) order by {{ layout.select_order }}
  {%- else %}
    {{ select }}
  {%- endif %}
{%- endmacro %}

{% macro iceberg_stream__finish_table(relation, layout) %}
  {#- Apply what `create table … as select` cannot express. -#}
  {% if layout.sort_order %}
    {%- set layout = layout.spelled(adapter.get_columns_in_relation(relation) | map(attribute='name') | list) -%}
    {% do run_query('alter table ' ~ relation.render() ~ ' ' ~ layout.write_order) %}
  {% endif %}
  {% do iceberg_stream__require_not_null_columns(relation) %}
{% endmacro %}

{#- Columns that the increment adds can partition the table once it has them. -#}
{% macro iceberg_stream__apply_layout(relation, layout, columns_follow=false) %}
  {% for clause in adapter.layout_alterations(relation, layout, columns_follow) %}
    {% do run_query('alter table ' ~ relation.render() ~ ' ' ~ clause) %}
  {% endfor %}
{% endmacro %}
