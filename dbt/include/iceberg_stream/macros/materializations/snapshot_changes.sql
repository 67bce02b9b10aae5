{#- dbt's strategy, except that names of columns may be in any letter case, and maps are compared. dbt finds the macro of
    a strategy by its name. -#}
{% macro snapshot_check_strategy(node, snapshotted_rel, current_rel, model_config, target_exists) %}
  {%- set key = config.get('unique_key') -%}
  {%- set hard_deletes = adapter.get_hard_deletes_behavior(config) -%}
  {%- set updated_at = adapter.as_operand(config.get('updated_at')) or snapshot_get_time() -%}
  {%- set checked = adapter.checked_columns(node, adapter.get_column_schema_from_query(node['compiled_code'])) -%}
  {{ return({
      'unique_key': key,
      'updated_at': updated_at,
      'row_changed': adapter.row_changed_sql(checked, this, snapshotted_rel, current_rel) if target_exists else 'false',
      'scd_id': snapshot_hash_arguments(api.Relation.scd_args(key, updated_at)),
      'invalidate_hard_deletes': hard_deletes == 'invalidate',
      'hard_deletes': hard_deletes,
  }) }}
{% endmacro %}

{#- What changes in the snapshot's table, with the columns of dbt's own macro. Keys may be null, so that rows are matched
    null-safe, and `__dbt_exists` tells those without a match. The query is read once: a change is a row for each entry of
    `__dbt_changes`. -#}
{% macro iceberg_stream__snapshot_staging_table(strategy, source_sql, target_relation) -%}
  {%- set names = config.get('snapshot_table_column_names') or get_snapshot_table_column_names() -%}
  {%- set current = adapter.as_operand(config.get('dbt_valid_to_current')) -%}
  {%- set now = snapshot_get_time() -%}
  {%- set finds_deletes = strategy.hard_deletes != 'ignore' -%}
  {%- set records_deletes = strategy.hard_deletes == 'new_record' -%}
  {%- set existing = {} -%}
  {%- for column in adapter.get_columns_in_relation(target_relation) -%}
    {%- do existing.update({column.name | lower: column.data_type}) -%}
  {%- endfor -%}
  {#- Without the cast, Spark casts the times of the source to that of a deletion, and stores other values. -#}
  {%- set changed_now = iceberg_stream__get_time_as_sql(now, existing.get(names.dbt_valid_from | lower)) -%}
  {%- set until_now = iceberg_stream__get_time_as_sql(now, existing.get(names.dbt_valid_to | lower)) -%}
  {%- set keys = iceberg_stream__get_unique_key_names(strategy.unique_key) -%}
  {%- set columns = adapter.get_column_schema_from_query(source_sql) -%}
  {%- set is_gone -%}
    {{ 'snapshotted_data.' ~ names.dbt_is_deleted ~ " <=> 'True'" if records_deletes else 'false' }}
  {%- endset -%}
  with snapshot_query as (
    {{ source_sql }}
  ),
  snapshotted_data as (
    select *, {{ unique_key_fields(strategy.unique_key) }}, true as __dbt_exists
    from {{ target_relation.render() }}
    where {{ names.dbt_valid_to }} is null {%- if current %} or {{ names.dbt_valid_to }} = {{ current }}{% endif %}
  ),
  source_data as (
    select *, {{ unique_key_fields(strategy.unique_key) }}, true as __dbt_exists,
      {{ strategy.updated_at }} as __dbt_changed_at
    from snapshot_query
  ),
  changes as (
    select source_data.*, __dbt_change,
      {%- for key in keys %}
      snapshotted_data.{{ key }} as __dbt_old_{{ key }},
      {%- endfor %}
      {%- if records_deletes %}
      {%- for column in columns if column.name | lower in existing %}
      snapshotted_data.{{ column.quoted }} as {{ iceberg_stream__get_old_name(column) }},
      {%- endfor %}
      {%- endif %}
      snapshotted_data.{{ names.dbt_valid_to }} as __dbt_old_until,
      snapshotted_data.{{ names.dbt_scd_id }} as __dbt_old_id
    from source_data
    {#- Without deletions, rows that are in the table only need not be joined. #}
    {{ 'full outer' if finds_deletes else 'left' }} join snapshotted_data
      on {% for key in keys %}snapshotted_data.{{ key }} <=> source_data.{{ key }}{{ ' and ' if not loop.last }}{% endfor %}
    lateral view explode(
      case
        when snapshotted_data.__dbt_exists is null then array('insert')
        when source_data.__dbt_exists and ({{ strategy.row_changed }} or {{ is_gone }}) then array('update', 'insert')
        {%- if finds_deletes %}
        when source_data.__dbt_exists is null and not ({{ is_gone }}) then array('delete' {%- if records_deletes %}, 'deletion'{% endif %})
        {%- endif %}
      end
    ) as __dbt_change
  )
  {#- Names of the source's columns are unique here, so that expressions of the config can have them. #}
  select if(__dbt_change = 'deletion', 'insert', __dbt_change) as dbt_change_type,
    {%- for key in keys %}
    if(__dbt_change = 'insert', {{ key }}, __dbt_old_{{ key }}) as {{ key }},
    {%- endfor %}
    {%- for column in columns %}
    {%- set of_key = iceberg_stream__get_key_name(strategy.unique_key, column.name) %}
    {%- set new = iceberg_stream__get_stored_sql(column, existing.get(column.name | lower)) %}
    {%- if of_key %}
    {#- The merge finds rows by it. #}
    if(__dbt_change = 'insert', {{ new }}, __dbt_old_{{ of_key }}) as {{ column.quoted }},
    {%- elif records_deletes and column.name | lower in existing %}
    if(__dbt_change = 'deletion', {{ iceberg_stream__get_old_name(column) }}, {{ new }}) as {{ column.quoted }},
    {%- else %}
    {{ column.quoted }},
    {%- endif %}
    {%- endfor %}
    {%- for name in (names.dbt_updated_at, names.dbt_valid_from) %}
    {{ "if(__dbt_change in ('delete', 'deletion'), " ~ changed_now ~ ', __dbt_changed_at)' if finds_deletes else '__dbt_changed_at' }} as {{ name }},
    {%- endfor %}
    case __dbt_change
      when 'insert' then __dbt_until
      when 'update' then __dbt_changed_at
      {%- if finds_deletes %}
      when 'delete' then {{ until_now }}
      {%- endif %}
      else __dbt_old_until
    end as {{ names.dbt_valid_to }},
    case __dbt_change
      when 'insert' then __dbt_new_id
      when 'deletion' then {{ snapshot_hash_arguments(['__dbt_old_id', now]) }}
      else __dbt_old_id
    end as {{ names.dbt_scd_id }}
    {%- if records_deletes %},
    if(__dbt_change = 'deletion', 'True', 'False') as {{ names.dbt_is_deleted }}
    {%- endif %}
  from (
    select *, {{ get_dbt_valid_to_current(strategy, {'dbt_valid_to': '__dbt_until'}) }},
      {{ strategy.scd_id }} as __dbt_new_id
    from changes
  )
{%- endmacro %}

{#- A time as another type; in UTC, whatever the session's time zone is, if that type has no time zone. -#}
{% macro iceberg_stream__get_time_as_sql(time, type) -%}
  {%- if type == 'timestamp' -%}
    cast({{ time }} as timestamp)
  {%- else -%}
    cast(timestamp_ntz '1970-01-01' + make_dt_interval(0, 0, 0, cast(
      cast(unix_micros(cast({{ time }} as timestamp)) as decimal(19, 0)) / 1000000 as decimal(18, 6))) as {{ type }})
  {%- endif -%}
{%- endmacro %}

{#- As dbt's own, but an expression of the config may end with a comment. dbt calls these macros by their names. -#}
{% macro get_dbt_valid_to_current(strategy, columns) %}
  {%- set updated_at = adapter.as_operand(strategy.updated_at) -%}
  {%- set current = adapter.as_operand(config.get('dbt_valid_to_current')) or 'null' -%}
  coalesce(nullif({{ updated_at }}, {{ updated_at }}), {{ current }}) as {{ columns.dbt_valid_to }}
{% endmacro %}

{% macro unique_key_fields(unique_key) %}
  {%- set names = iceberg_stream__get_unique_key_names(unique_key) -%}
  {%- for key in iceberg_stream__get_key_list(unique_key) -%}
    {{ adapter.as_operand(key) }} as {{ names[loop.index0] }}{{ ', ' if not loop.last }}
  {%- endfor -%}
{% endmacro %}

{% macro iceberg_stream__get_unique_key_names(unique_key) %}
  {%- if unique_key is string -%}
    {{ return(['dbt_unique_key']) }}
  {%- endif -%}
  {%- set names = [] -%}
  {%- for key in unique_key -%}
    {%- do names.append('dbt_unique_key_' ~ loop.index) -%}
  {%- endfor -%}
  {{ return(names) }}
{% endmacro %}

{#- A value as the table stores it: else Spark casts stored values to the type that the query has now. -#}
{% macro iceberg_stream__get_stored_sql(column, type) -%}
  {%- if type and type != column.data_type and '<' not in type -%}
    cast({{ column.quoted }} as {{ type }})
  {%- else -%}
    {{ column.quoted }}
  {%- endif -%}
{%- endmacro %}

{% macro iceberg_stream__get_old_name(column) -%}
  {{ adapter.quote('__dbt_old_column_' ~ column.name) }}
{%- endmacro %}

{#- What a column of the key is called among the keys; none for other columns. -#}
{% macro iceberg_stream__get_key_name(unique_key, column) %}
  {%- for key in iceberg_stream__get_key_list(unique_key) -%}
    {%- if key | replace('`', '') | lower == column | lower -%}
      {{ return(iceberg_stream__get_unique_key_names(unique_key)[loop.index0]) }}
    {%- endif -%}
  {%- endfor -%}
{% endmacro %}

{#- The ids of dbt-spark, except that a null and an empty text have different ones. -#}
{% macro iceberg_stream__snapshot_hash_arguments(args) -%}
  md5(concat(
    {%- for arg in args -%}
    coalesce(cast({{ adapter.as_operand(arg) }} as string), ''), {{ "'|', " if not loop.last }}
    {%- endfor -%}
    {%- for arg in args -%}
    if({{ adapter.as_operand(arg) }} is null, '|null {{ loop.index }}', ''){{ ', ' if not loop.last }}
    {%- endfor -%}
  ))
{%- endmacro %}
