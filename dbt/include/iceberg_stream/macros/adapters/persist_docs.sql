{% macro iceberg_stream__sql_literal(text) -%}
  '{{ text | replace("\\", "\\\\") | replace("'", "\\'") }}'
{%- endmacro %}

{% macro iceberg_stream__get_relation_comment_clause() -%}
  {%- if config.persist_relation_docs() and model.description -%}
    comment {{ iceberg_stream__sql_literal(model.description) }}
  {%- endif -%}
{%- endmacro %}

{#- Views and new tables are created with their comments. This sets the comments of columns of tables
    and of existing tables, if they differ. All branches share the comments, so a run that writes to a
    branch leaves them. -#}
{% macro iceberg_stream__persist_docs(relation, model, for_relation, for_columns) -%}
  {%- if not relation.is_view and not relation.branch -%}
    {%- if for_relation and config.persist_relation_docs() and model.description -%}
      {%- if adapter.relation_comment(relation) != model.description -%}
        {% do run_query(alter_relation_comment(relation, model.description)) %}
      {%- endif -%}
    {%- endif -%}
    {%- if for_columns and config.persist_column_docs() and model.columns -%}
      {%- set names = adapter.get_columns_in_relation(relation) | map(attribute='name') | list -%}
      {%- set documented = validate_doc_columns(relation, model.columns, names) -%}
      {%- set changed = adapter.changed_column_comments(relation, documented) -%}
      {%- if changed -%}
        {% do run_query(alter_column_comment(relation, changed)) %}
      {%- endif -%}
    {%- endif -%}
  {%- endif -%}
{%- endmacro %}

{% macro iceberg_stream__alter_relation_comment(relation, comment) -%}
  alter table {{ relation.render() }} set tblproperties ('comment' = {{ iceberg_stream__sql_literal(comment) }})
{%- endmacro %}

{% macro iceberg_stream__alter_column_comment(relation, comments) -%}
  alter table {{ relation.render() }} alter column
  {%- for name, comment in comments.items() %}
    {{ adapter.quote(name) }} comment {{ iceberg_stream__sql_literal(comment) }}{{ ',' if not loop.last }}
  {%- endfor %}
{%- endmacro %}
