{% macro iceberg_stream__get_merge_sql(target, source, unique_key, dest_columns, incremental_predicates=none) -%}
  {%- set columns = dest_columns or adapter.get_columns_in_relation(target) -%}
  {%- set plan = iceberg_stream__get_merge_plan({
      'unique_key': unique_key, 'dest_columns': columns, 'incremental_predicates': incremental_predicates}) -%}
  {{ adapter.get_merge_sql(target, source, columns, plan) }}
{%- endmacro %}

{#- Return the merge options of the config, resolved against the columns. -#}
{% macro iceberg_stream__get_merge_plan(arg_dict) %}
  {%- set target = config.get('target_alias') or 'DBT_INTERNAL_DEST' -%}
  {%- set source = config.get('source_alias') or 'DBT_INTERNAL_SOURCE' -%}
  {%- set keys = iceberg_stream__get_spelled_keys(arg_dict['unique_key'], arg_dict['dest_columns']) -%}
  {%- set on = [iceberg_stream__get_key_match_sql(keys, source, target) or 'false']
        + iceberg_stream__get_predicate_list(arg_dict['incremental_predicates']) -%}
  {%- set updated = iceberg_stream__get_merge_updated_columns(arg_dict) -%}
  {%- set update_when = [adapter.get_changed_sql(updated, target, source)] -%}
  {%- if config.get('matched_condition') -%}
    {%- do update_when.append(adapter.as_operand(config.get('matched_condition'))) -%}
  {%- endif -%}
  {{ return({
      'unique_key': arg_dict['unique_key'],
      'target': target,
      'source': source,
      'on': on | join(' and '),
      'updated': [] if config.get('skip_matched_step') else updated,
      'update_when': update_when | join(' and '),
      'matched_when': adapter.as_operand(config.get('matched_condition')),
      'inserts': not config.get('skip_not_matched_step'),
      'insert_when': adapter.as_operand(config.get('not_matched_condition')),
      'source_action': config.get('not_matched_by_source_action'),
      'source_when': adapter.as_operand(config.get('not_matched_by_source_condition')),
  }) }}
{% endmacro %}

{% macro iceberg_stream__get_merge_updated_columns(arg_dict) %}
  {%- set keys = iceberg_stream__get_key_list(arg_dict['unique_key']) | map('replace', '`', '') | map('lower') | list -%}
  {%- set only = config.get('merge_update_columns') -%}
  {%- set only = iceberg_stream__get_key_list(only) | map('replace', '`', '') | map('lower') | list -%}
  {%- set never = iceberg_stream__get_key_list(config.get('merge_exclude_columns')) | map('replace', '`', '') | map('lower') | list -%}
  {%- set updated = [] -%}
  {%- for column in arg_dict['dest_columns'] -%}
    {%- set name = column.name | lower -%}
    {%- if only -%}
      {%- if name in only -%}{%- do updated.append(column) -%}{%- endif -%}
    {%- elif name not in keys and name not in never -%}
      {%- do updated.append(column) -%}
    {%- endif -%}
  {%- endfor -%}
  {{ return(updated) }}
{% endmacro %}

{#- Check before Spark's merge: keys that occur twice in the increment are an error that names them. A merge that would
    change nothing is not run, because it would rewrite files and commit; in large tables it is cheaper not to look. -#}
{% macro iceberg_stream__merge_changes_anything(arg_dict) %}
  {%- set looks = adapter.is_previewed(arg_dict['target_relation']) -%}
  {%- set plan = iceberg_stream__get_merge_plan(arg_dict) -%}
  {%- set found = run_query(iceberg_stream__get_merge_preview_sql(arg_dict, plan, looks)).rows[0] -%}
  {%- if found[0] > 0 -%}
    {% do iceberg_stream__raise_duplicate_keys(arg_dict) %}
  {%- endif -%}
  {#- The rows may only be there because another writer has made the same change. -#}
  {%- if looks and not found[1] -%}
    {% do adapter.check_increment(arg_dict['target_relation'], arg_dict['temp_relation']) %}
  {%- endif -%}
  {{ return(found[1] > 0) }}
{% endmacro %}

{% macro iceberg_stream__get_merge_preview_sql(arg_dict, plan, looks) -%}
  {%- set staging = arg_dict['temp_relation'].render() -%}
  {%- set relation = arg_dict['target_relation'].render() -%}
  select
    (select {{ iceberg_stream__get_duplicate_count_sql(iceberg_stream__get_key_list(arg_dict['unique_key'])) }} from {{ staging }}) as duplicate_keys,
    {%- if not looks %}
    (select count(*) from {{ staging }}) {{- ' + 1' if plan.source_action }} as changes
    {%- else %}
    (select count_if(
        {%- if plan.updated %} ({{ plan.target }}._file is not null and {{ plan.update_when }}){% else %} false{% endif %}
        {%- if plan.inserts %} or ({{ plan.target }}._file is null
          {%- if plan.insert_when %} and {{ plan.insert_when }}{% endif %}){% endif %})
     from {{ staging }} as {{ plan.source }}
     left join {{ relation }} as {{ plan.target }}
       on {{ plan.on }})
    {%- if plan.source_action %}
    + (select count(*) from {{ relation }} as {{ plan.target }}
       left anti join {{ staging }} as {{ plan.source }} on {{ plan.on }}
       {%- if plan.source_when %} where {{ plan.source_when }}{% endif %})
    {%- endif %} as changes
    {%- endif %}
{%- endmacro %}

{#- Count the rows beyond the first of their key. A single key column is counted without a struct,
    which Spark hashes more slowly. `count(distinct)` ignores nulls, so nulls are counted separately. -#}
{% macro iceberg_stream__get_duplicate_count_sql(keys) -%}
  {%- if keys | length == 1 -%}
    {%- set key = iceberg_stream__quote_key(keys[0]) -%}
    count({{ key }}) - count(distinct {{ key }}) + greatest(count_if({{ key }} is null) - 1, 0)
  {%- else -%}
    count(*) - count(distinct struct({% for key in keys %}{{ iceberg_stream__quote_key(key) }}{{ ', ' if not loop.last }}{% endfor %}))
  {%- endif -%}
{%- endmacro %}

{% macro iceberg_stream__raise_duplicate_keys(arg_dict) %}
  {%- set keys = iceberg_stream__get_key_list(arg_dict['unique_key']) -%}
  {% do exceptions.raise_compiler_error(
      model.unique_id ~ ' returns more than one row for a unique_key (' ~ keys | join(', ') | replace('`', '') ~ '): '
      ~ iceberg_stream__get_duplicate_keys(arg_dict['temp_relation'].render(), keys)
      ~ '. Make the model return one row for each key, or add a column to unique_key.') %}
{% endmacro %}

{#- Return up to three keys that occur more than once among rows, and how often; `more` are columns that are not shown. -#}
{% macro iceberg_stream__get_duplicate_keys(rows, keys, more=[]) %}
  {%- set names, texts = [], [] -%}
  {%- for key in keys -%}
    {%- do names.append(iceberg_stream__quote_key(key)) -%}
    {%- do texts.append('cast(' ~ iceberg_stream__quote_key(key) ~ ' as string)') -%}
  {%- endfor -%}
  {%- set examples = run_query(
      'select concat_ws(", ", ' ~ texts | join(', ') ~ '), count(*) from ' ~ rows
      ~ ' group by ' ~ (names + more) | join(', ') ~ ' having count(*) > 1 order by 2 desc limit 3') -%}
  {%- set shown = [] -%}
  {%- for row in examples.rows -%}
    {%- do shown.append('(' ~ row[0] ~ ') ' ~ row[1] ~ ' times') -%}
  {%- endfor -%}
  {{ return(shown | join(', ')) }}
{% endmacro %}
