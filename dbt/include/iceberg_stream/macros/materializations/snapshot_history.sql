{#- The snapshot strategy `iceberg_history`: it reads each version of the source that the snapshot has not read, and
    dates changes by the commits of the source. dbt finds the macro of a strategy by its name. -#}
{% macro snapshot_iceberg_history_strategy(node, snapshotted_rel, current_rel, model_config, target_exists) %}
  {%- set key = config.get('unique_key') -%}
  {%- set hard_deletes = adapter.get_hard_deletes_behavior(config) -%}
  {{ return({
      'unique_key': key,
      'updated_at': 'dbt_at',
      'row_changed': 'false',
      'scd_id': snapshot_hash_arguments(api.Relation.scd_args(key, 'dbt_at')),
      'invalidate_hard_deletes': hard_deletes == 'invalidate',
      'hard_deletes': hard_deletes,
  }) }}
{% endmacro %}

{#- Each statement reads a number of versions, so that a long history needs several commits. -#}
{% macro iceberg_stream__snapshot_history(existing, relation, strategy, layout) %}
  {%- set columns = adapter.get_column_schema_from_query(sql) -%}
  {% do adapter.check_snapshot_query(model, strategy, columns) %}
  {%- set since = iceberg_stream__get_last_change(relation) if existing is not none else none -%}
  {%- if existing is not none %}{% do iceberg_stream__widen_columns(relation, columns) %}{% endif -%}
  {%- set target = [existing] -%}
  {% for versions in adapter.snapshot_versions(sql, model, columns, since) %}
    {% if target[-1] is none %}
      {% do iceberg_stream__build_table(none, relation, iceberg_stream__get_history_sql(none, strategy, versions, columns), layout) %}
      {% do target.append(relation) %}
    {% else %}
      {% do iceberg_stream__apply_snapshot_changes(
          relation, strategy, iceberg_stream__get_history_sql(relation, strategy, versions, columns)) %}
    {% endif %}
  {% endfor %}
{% endmacro %}

{#- When the last change was committed that the snapshot has, in milliseconds. -#}
{% macro iceberg_stream__get_last_change(relation) %}
  {%- set names = config.get('snapshot_table_column_names') or get_snapshot_table_column_names() -%}
  {%- set until = names.dbt_valid_to -%}
  {%- if config.get('dbt_valid_to_current') -%}
    {%- set until = 'nullif(' ~ until ~ ', ' ~ adapter.as_operand(config.get('dbt_valid_to_current')) ~ ')' -%}
  {%- endif -%}
  {%- set query -%}
    select unix_millis(greatest(max({{ names.dbt_valid_from }}), max({{ until }}))) from {{ relation.render() }}
  {%- endset -%}
  {{ return(run_query(query).rows[0][0]) }}
{% endmacro %}

{#- What changes in the snapshot's table, as dbt's own strategies return it: the rows in the step 0 are those that the
    table has, each later step is a version of the source. (Spark 4.1 takes the result of `element_at` for a value if
    the index is null; `get` is right.) -#}
{% macro iceberg_stream__get_history_sql(target, strategy, versions, columns) -%}
  {%- set names = config.get('snapshot_table_column_names') or get_snapshot_table_column_names() -%}
  {%- set current = adapter.as_operand(config.get('dbt_valid_to_current')) -%}
  {%- set deletes = strategy.hard_deletes != 'ignore' -%}
  {%- set records_deletes = strategy.hard_deletes == 'new_record' -%}
  {%- set keys = iceberg_stream__get_key_list(strategy.unique_key) | join(', ') -%}
  {%- set rows = columns | map(attribute='quoted') | join(', ') -%}
  {%- set compared = iceberg_stream__get_compared_values(columns) -%}
  {%- set is_current -%}
    {{ names.dbt_valid_to }} is null{% if current %} or {{ names.dbt_valid_to }} = {{ current }}{% endif %}
  {%- endset -%}
  {%- set before = iceberg_stream__get_columns_of_target(target, columns) if target else none -%}
  with dbt_states as (
    {%- if target %}
    select 0 as dbt_step, {{ before }} from {{ target.render() }}
    where ({{ is_current }}){% if records_deletes %} and {{ names.dbt_is_deleted }} = 'False'{% endif %}
    union all
    {%- endif %}
    {%- for version in versions %}
    select {{ loop.index }} as dbt_step, {{ version.columns or rows }} from (
      {{ version.sql }}
    )
    {%- if not loop.last %} union all{% endif %}
    {%- endfor %}
  ),
  dbt_rows as (
    select *,
      lag(dbt_step) over dbt_key as dbt_previous_step,
      lead(dbt_step) over dbt_key as dbt_next_step,
      lag(struct({{ compared }})) over dbt_key as dbt_previous_row
    from dbt_states
    window dbt_key as (partition by {{ keys }} order by dbt_step)
  ),
  dbt_events as (
    select 'insert' as dbt_change_type, dbt_step, {{ rows }}, cast(null as string) as dbt_current_id
    from dbt_rows
    where dbt_step > 0 and if(
      dbt_previous_step = dbt_step,
      raise_error(concat('The unique_key occurs twice in a version of the source: ', to_json(struct({{ keys }})))),
      dbt_previous_step is null
      {%- if deletes %} or dbt_previous_step < dbt_step - 1{% endif %}
      or not dbt_previous_row <=> struct({{ compared }})
    )
    {%- if deletes %}
    union all
    select 'delete', dbt_step + 1, {{ rows }}, null from dbt_rows
    where dbt_step < {{ versions | length }}
      and coalesce(dbt_next_step, {{ versions | length + 1 }}) > dbt_step + 1
    {%- endif %}
    {%- if target %}
    union all
    select 'current', 0, {{ before }}, {{ names.dbt_scd_id }} from {{ target.render() }} where {{ is_current }}
    {%- endif %}
  ),
  dbt_dated as (
    select *, get(dbt_times, dbt_step - 1) as dbt_at,
      get(dbt_times, lead(dbt_step) over dbt_key - 1) as dbt_until,
      lead(dbt_change_type) over dbt_key as dbt_next_type
    from dbt_events cross join (select array(
      {%- for version in versions %}timestamp_millis({{ version.at_ms }}){% if not loop.last %}, {% endif %}{% endfor -%}
    ) as dbt_times)
    window dbt_key as (partition by {{ keys }} order by dbt_step)
  )
  select {% if target %}dbt_change_type, {{ unique_key_fields(strategy.unique_key) }}, {% endif %}{{ rows }},
    dbt_scd_id as {{ names.dbt_scd_id }}, dbt_at as {{ names.dbt_updated_at }},
    dbt_at as {{ names.dbt_valid_from }}, dbt_until as {{ names.dbt_valid_to }}
    {%- if records_deletes %}, dbt_is_deleted as {{ names.dbt_is_deleted }}{% endif %}
  from (
    select 'insert' as dbt_change_type, {{ rows }}, {{ strategy.scd_id }} as dbt_scd_id, dbt_at,
      coalesce(dbt_until, {{ current or 'null' }}) as dbt_until,
      if(dbt_change_type = 'delete', 'True', 'False') as dbt_is_deleted
    from dbt_dated
    where dbt_change_type = 'insert'{% if records_deletes %} or dbt_change_type = 'delete'{% endif %}
    {%- if target %}
    union all
    select if(dbt_next_type = 'delete', 'delete', 'update'), {{ rows }}, dbt_current_id, dbt_until, dbt_until, 'False'
    from dbt_dated
    where dbt_change_type = 'current' and dbt_until is not null
    {%- endif %}
  )
{%- endmacro %}

{#- The values that make a new version of a row if they change, as Spark can compare them. -#}
{% macro iceberg_stream__get_compared_values(columns) %}
  {%- set values = [] -%}
  {%- for column in adapter.checked_columns(model, columns) -%}
    {%- do values.append(adapter.comparable_sql(column)) -%}
  {%- endfor -%}
  {{ return(values | join(', ')) }}
{% endmacro %}

{#- The columns of the source in the snapshot's table, which lacks new ones until its rows are merged. -#}
{% macro iceberg_stream__get_columns_of_target(target, columns) %}
  {%- set existing = adapter.get_columns_in_relation(target) | map(attribute='name') | map('lower') | list -%}
  {%- set selected = [] -%}
  {%- for column in columns -%}
    {%- if column.name | lower in existing -%}
      {%- do selected.append(column.quoted) -%}
    {%- else -%}
      {%- do selected.append('cast(null as ' ~ column.data_type ~ ') as ' ~ column.quoted) -%}
    {%- endif -%}
  {%- endfor -%}
  {{ return(selected | join(', ')) }}
{% endmacro %}
