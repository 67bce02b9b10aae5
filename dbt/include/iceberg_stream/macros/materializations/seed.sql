{% materialization seed, adapter='iceberg_stream' %}
  {%- set layout = adapter.check_model(model) -%}
  {%- set rows = adapter.read_seed(load_agate_table, model.config.delimiter) -%}
  {%- do store_result('agate_table', response='OK', agate_table=rows) -%}
  {%- set unchanged = iceberg_stream__leave_unchanged(this.incorporate(type='table')) -%}
  {% if unchanged %}{{ return({'relations': [unchanged]}) }}{% endif %}

  {%- set existing = iceberg_stream__load_writable_relation(this) -%}
  {%- set relation = this.incorporate(type='table') -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks) }}

  {%- set view = make_temp_relation(this, '__dbt_seed') -%}
  {%- set built = adapter.build_seed(relation, rows, layout, model.config, view.identifier) -%}
  {% if built %}
    {% do store_result('main', response=built, agate_table=none) %}
  {% else %}
    {#- Texts are cast in a view, which keeps the time zone that it is created in. -#}
    {%- set typed = make_temp_relation(this, '__dbt_typed') -%}
    {% do adapter.run_in_utc(
        'create temporary view ' ~ typed.render() ~ ' as ' ~ iceberg_stream__get_seed_select_sql(view, rows)) %}
    {% do iceberg_stream__build_table(existing, relation, 'select * from ' ~ typed.render(), layout) %}
    {% do adapter.drop_relation(typed) %}
    {% do adapter.drop_relation(view) %}
  {% endif %}
  {% do persist_docs(relation, model) %}

  {{ run_hooks(post_hooks) }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {% do adapter.tag_model(relation, model) %}
  {% do adapter.maintain_model(relation, model) %}
  {% do adapter.record_build(relation, model) %}
  {% do iceberg_stream__warn_of_row_drop(relation) %}

  {{ return({'relations': [relation]}) }}
{% endmaterialization %}

{% macro iceberg_stream__get_seed_select_sql(view, rows) -%}
  {%- set types = {} -%}
  {%- for name, type in (config.get('column_types') or {}).items() -%}
    {%- do types.update({name | lower: type}) -%}
  {%- endfor -%}
  select
  {%- for name in rows.column_names %}
    {%- set quoted = adapter.quote(name) %}
    {% if types.get(name | lower) -%}
      cast({{ quoted }} as {{ types[name | lower] }}) as {{ quoted }}
    {%- else -%}
      {{ quoted }}
    {%- endif -%}
    {{ ',' if not loop.last }}
  {%- endfor %}
  from {{ view.render() }}
{%- endmacro %}
