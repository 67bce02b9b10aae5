{% materialization snapshot, adapter='iceberg_stream' %}
  {%- set layout = adapter.check_model(model) -%}
  {%- set unchanged = iceberg_stream__leave_unchanged(this.incorporate(type='table')) -%}
  {% if unchanged %}{{ return({'relations': [unchanged]}) }}{% endif %}

  {%- set existing = iceberg_stream__load_writable_relation(this, rows_only=true) -%}
  {%- set relation = this.incorporate(type='table') -%}
  {%- if existing is not none and existing.is_view -%}
    {% do exceptions.relation_wrong_type(existing, 'table', model) %}
  {%- endif -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks) }}

  {%- set make_strategy = strategy_dispatch(config.get('strategy')) -%}
  {%- set strategy = make_strategy(model, 'snapshotted_data', 'source_data', model['config'], existing is not none) -%}
  {% if config.get('strategy') == 'iceberg_history' %}
    {% do iceberg_stream__snapshot_history(existing, relation, strategy, layout) %}
  {% elif existing is none %}
    {%- set rows = build_snapshot_table(strategy, iceberg_stream__get_reading_sql(model['compiled_code'])) -%}
    {% do adapter.check_snapshot_query(model, strategy, adapter.get_column_schema_from_query(rows)) %}
    {% do iceberg_stream__build_table(none, relation, rows, layout) %}
  {% else %}
    {%- set query = iceberg_stream__get_reading_sql(sql) -%}
    {%- set columns = adapter.get_column_schema_from_query(build_snapshot_table(strategy, query)) -%}
    {% do adapter.check_snapshot_query(model, strategy, columns) %}
    {% do iceberg_stream__widen_columns(relation, columns) %}
    {% do iceberg_stream__apply_snapshot_changes(
        relation, strategy, snapshot_staging_table(strategy, query, relation)) %}
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

{#- Values that the table stored otherwise than the query returns them would differ at each run. -#}
{% macro iceberg_stream__widen_columns(relation, columns) %}
  {% for column in adapter.columns_to_widen(relation, columns) %}
    {% do alter_column_type(relation, column.name, column.data_type) %}
  {% endfor %}
{% endmacro %}

{% macro iceberg_stream__apply_snapshot_changes(relation, strategy, changes) %}
  {%- set columns = config.get('snapshot_table_column_names') or get_snapshot_table_column_names() -%}
  {% do adapter.assert_valid_snapshot_target_given_strategy(relation, columns, strategy) %}
  {%- set staging = make_temp_relation(relation) -%}
  {% do adapter.stage_rows(staging, changes) %}
  {%- set helpers = ['dbt_change_type'] + iceberg_stream__get_unique_key_names(strategy.unique_key) -%}
  {% do create_columns(relation, adapter.get_missing_columns(staging, relation)
        | rejectattr('name', 'in', helpers) | list) %}
  {%- set names = [] -%}
  {%- for column in adapter.get_columns_in_relation(staging) if column.name not in helpers -%}
    {%- do names.append(column.quoted) -%}
  {%- endfor -%}
  {%- set merge = snapshot_merge_sql(target=relation, source=staging, insert_cols=names) -%}
  {%- set own = iceberg_stream__get_own_macro([snapshot_merge_sql, adapter.dispatch('snapshot_merge_sql', 'dbt')]) -%}
  {%- set found = run_query(iceberg_stream__get_snapshot_counts_sql(staging, columns, strategy)).rows[0] -%}
  {%- if found[0] > 0 and not own -%}
    {% do iceberg_stream__raise_duplicate_versions(staging, columns, strategy) %}
  {%- endif -%}
  {%- if found[1] > 0 and not own -%}
    {% do iceberg_stream__raise_duplicate_rows(staging, columns, strategy) %}
  {%- endif -%}
  {%- if found[2] == 0 -%}
    {% call noop_statement('main', 'MERGE 0 rows', 'MERGE', 0) -%}
      {{ merge }}
    {%- endcall %}
  {%- else -%}
    {%- set plan = iceberg_stream__get_snapshot_plan(relation, columns) -%}
    {#- A merge by rewriting notices ids of older versions itself. #}
    {%- set rewritten = adapter.merge_by_rewrite(relation, staging, dict(plan, is_retried=true), model) if not own -%}
    {%- if not (rewritten and rewritten.merge_engine == 'rewrite') -%}
      {%- set has_used_ids = run_query(iceberg_stream__get_used_ids_sql(relation, staging, columns)).rows | length > 0 -%}
      {%- if has_used_ids -%}
        {% do adapter.stage_rows(staging, iceberg_stream__get_unused_ids_sql(relation, staging, columns)) %}
      {%- endif -%}
      {%- if not own and (has_used_ids or config.get('merge_engine') == 'rewrite') -%}
        {%- set rewritten = adapter.merge_by_rewrite(relation, staging, plan, model) -%}
      {%- endif -%}
    {%- endif -%}
    {% do iceberg_stream__run_merge(merge, rewritten) %}
  {%- endif -%}
  {% do adapter.drop_relation(staging) %}
{% endmacro %}

{#- The third column is the number of changes. The first one is that of changes beyond the first that end one version:
    its key occurs twice in the query or among the current versions. The second one is that of new current versions of a
    key beyond its first. -#}
{% macro iceberg_stream__get_snapshot_counts_sql(staging, names, strategy) -%}
  {%- set ends = "dbt_change_type in ('update', 'delete')" -%}
  {%- set begins = iceberg_stream__get_is_new_version_sql(names) -%}
  {%- set keys = iceberg_stream__get_unique_key_names(strategy.unique_key) -%}
  select
    count_if({{ ends }}) - count(distinct if({{ ends }}, struct({{ names.dbt_scd_id }}, {{ keys | join(', ') }}), null)),
    count_if({{ begins }}) - count(distinct if({{ begins }}, struct({{ keys | join(', ') }}), null)),
    count(*)
  from {{ staging.render() }}
{%- endmacro %}

{#- The ids of the table that new versions would have as well. -#}
{% macro iceberg_stream__get_used_ids_sql(target, staging, names) -%}
  select distinct {{ names.dbt_scd_id }} as __dbt_used_id from {{ target.render() }} where {{ names.dbt_scd_id }} in
    (select {{ names.dbt_scd_id }} from {{ staging.render() }} where dbt_change_type = 'insert')
{%- endmacro %}

{#- A row that comes back with an earlier `updated_at` needs an id of its own: the merge finds rows by it. -#}
{% macro iceberg_stream__get_unused_ids_sql(target, staging, names) -%}
  {%- set id = names.dbt_scd_id -%}
  with used_ids as (
    {{ iceberg_stream__get_used_ids_sql(target, staging, names) }}
  )
  select
    {%- for column in adapter.get_columns_in_relation(staging) %}
    {%- if column.name | lower == id | replace('`', '') | lower %}
    if(dbt_change_type = 'insert' and __dbt_used_id is not null,
      {{ snapshot_hash_arguments([id, snapshot_get_time()]) }}, {{ id }}) as {{ column.quoted }}
    {%- else %}
    {{ column.quoted }}
    {%- endif %}
    {{- ',' if not loop.last }}
    {%- endfor %}
  from {{ staging.render() }} left join used_ids on {{ id }} = __dbt_used_id
{%- endmacro %}

{% macro iceberg_stream__raise_duplicate_versions(staging, names, strategy) %}
  {%- set keys = iceberg_stream__get_unique_key_names(strategy.unique_key) -%}
  {%- set shown = iceberg_stream__get_duplicate_keys(
      staging.render() ~ " where dbt_change_type in ('update', 'delete')", keys, [names.dbt_scd_id]) -%}
  {% do exceptions.raise_compiler_error(
      model.unique_id ~ ': a unique_key (' ~ iceberg_stream__get_key_list(strategy.unique_key) | join(', ')
      ~ ') occurs more than once: ' ~ shown ~ '. Nothing was written. Make the query return one row for each key. If it'
      ~ ' does, ' ~ this.render() ~ ' has several current versions of the key: delete all but one.') %}
{% endmacro %}

{% macro iceberg_stream__get_is_new_version_sql(names) -%}
  {%- set current = adapter.as_operand(config.get('dbt_valid_to_current')) -%}
  (dbt_change_type = 'insert' and ({{ names.dbt_valid_to }} is null
    {%- if current %} or {{ names.dbt_valid_to }} = {{ current }}{% endif %}))
{%- endmacro %}

{% macro iceberg_stream__raise_duplicate_rows(staging, names, strategy) %}
  {%- set shown = iceberg_stream__get_duplicate_keys(
      staging.render() ~ ' where ' ~ iceberg_stream__get_is_new_version_sql(names),
      iceberg_stream__get_unique_key_names(strategy.unique_key)) -%}
  {% do exceptions.raise_compiler_error(
      model.unique_id ~ ' returns more than one row for a unique_key ('
      ~ iceberg_stream__get_key_list(strategy.unique_key) | join(', ') ~ '): ' ~ shown
      ~ '. Nothing was written. Make the query return one row for each key, or add a column to unique_key.') %}
{% endmacro %}

{#- Return which versions are closed and which are new. Ids are hashes of texts, which different keys may share (null
    and '', or a time of day that occurs twice). Keys that are columns are therefore compared as well. -#}
{% macro iceberg_stream__get_snapshot_plan(target, names) %}
  {%- set on = ['DBT_INTERNAL_SOURCE.' ~ names.dbt_scd_id ~ ' = DBT_INTERNAL_DEST.' ~ names.dbt_scd_id] -%}
  {%- set columns = adapter.get_columns_in_relation(target) -%}
  {%- set existing = columns | map(attribute='name') | map('lower') | list -%}
  {%- set key_names = iceberg_stream__get_unique_key_names(config.get('unique_key')) -%}
  {%- set merged_by = [names.dbt_scd_id] -%}
  {%- for key in iceberg_stream__get_key_list(config.get('unique_key')) -%}
    {%- if key | replace('`', '') | lower in existing -%}
      {%- do merged_by.append(key) -%}
      {%- do on.append(
          'DBT_INTERNAL_SOURCE.' ~ key_names[loop.index0] ~ ' <=> DBT_INTERNAL_DEST.' ~ iceberg_stream__quote_key(key)) -%}
    {%- endif -%}
  {%- endfor -%}
  {%- set valid_to = 'DBT_INTERNAL_DEST.' ~ names.dbt_valid_to -%}
  {%- set updated = [] -%}
  {%- for column in columns if column.name | lower == names.dbt_valid_to | replace('`', '') | lower -%}
    {%- do updated.append(column) -%}
  {%- endfor -%}
  {%- set current = adapter.as_operand(config.get('dbt_valid_to_current')) -%}
  {%- set is_current = valid_to ~ ' is null' ~ (' or ' ~ valid_to ~ ' = ' ~ current if current else '') -%}
  {%- set changes = "DBT_INTERNAL_SOURCE.dbt_change_type in ('update', 'delete')" -%}
  {{ return({
      'unique_key': merged_by,
      'has_new_keys': true,
      'target': 'DBT_INTERNAL_DEST',
      'source': 'DBT_INTERNAL_SOURCE',
      'on': on | join(' and '),
      'updated': updated,
      'matched_when': '(' ~ is_current ~ ') and ' ~ changes,
      'matched_target_when': is_current,
      'matched_source_when': changes,
      'inserts': true,
      'insert_when': "DBT_INTERNAL_SOURCE.dbt_change_type = 'insert'",
  }) }}
{% endmacro %}

{% macro iceberg_stream__snapshot_merge_sql(target, source, insert_cols) -%}
  {%- set names = config.get('snapshot_table_column_names') or get_snapshot_table_column_names() -%}
  {%- set plan = iceberg_stream__get_snapshot_plan(target, names) -%}
  merge into {{ target.render() }} as {{ plan.target }}
  using {{ source.render() }} as {{ plan.source }}
  on {{ plan.on }}
  when matched and {{ plan.matched_when }}
    then update set {{ names.dbt_valid_to }} = {{ plan.source }}.{{ names.dbt_valid_to }}
  when not matched and {{ plan.insert_when }}
    then insert ({{ insert_cols | join(', ') }})
    values ({{ insert_cols | join(', ') }})
{%- endmacro %}
