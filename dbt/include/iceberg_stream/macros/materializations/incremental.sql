{% materialization incremental, adapter='iceberg_stream', supported_languages=['sql', 'python'] %}
  {%- set layout = adapter.check_model(model) -%}
  {%- set unchanged = iceberg_stream__leave_unchanged(this.incorporate(type='table'), is_incremental()) -%}
  {% if unchanged %}{{ return({'relations': [unchanged]}) }}{% endif %}

  {%- set continues = adapter.continues_batches(model.unique_id) -%}
  {%- set refreshes = should_full_refresh() and not continues -%}
  {%- set existing = iceberg_stream__load_writable_relation(this, rows_only=not refreshes) -%}
  {% if continues and (existing is none or existing.is_view) %}
    {% do exceptions.raise_compiler_error(
        'The table ' ~ this.render() ~ ' is gone, so the failed batches alone would be in it. '
        'Run the model with --full-refresh.') %}
  {% endif %}
  {%- set relation = this.incorporate(type='table') -%}
  {%- set strategy = adapter.strategy_of(model) -%}
  {%- set make_sql = adapter.get_incremental_strategy_macro(context, strategy) -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks) }}

  {%- set select = iceberg_stream__get_model_select(compiled_code, model['language']) -%}
  {% if existing is none or existing.is_view or refreshes %}
    {% do iceberg_stream__check_named_columns(select, []) %}
    {% do iceberg_stream__build_table(existing, relation, select, layout) %}
  {% else %}
    {%- set adds_columns = config.get('on_schema_change') in ('append_new_columns', 'sync_all_columns') -%}
    {% do iceberg_stream__apply_layout(relation, layout, columns_follow=adds_columns) %}
    {% do iceberg_stream__apply_increment(relation, select, strategy, make_sql, layout) %}
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

{% macro iceberg_stream__check_named_columns(select, of_table) %}
  {% if config.get('unique_key') %}
    {%- set query = (config.get('sql_header') or '') ~ '\n' ~ select -%}
    {% do adapter.check_named_columns(model, adapter.get_column_schema_from_query(query), of_table) %}
  {% endif %}
{% endmacro %}

{% macro iceberg_stream__apply_increment(relation, select, strategy, make_sql, layout) %}
  {%- set overriding = iceberg_stream__get_overriding_macro(strategy, make_sql) -%}
  {%- set merges = not overriding and (strategy in ('merge', 'delete+insert')
        or (strategy == 'microbatch' and not iceberg_stream__replaces_whole_files(relation))) -%}
  {%- if merges and iceberg_stream__merge_few_rows(relation, select, strategy) -%}
    {{ return(none) }}
  {%- endif -%}
  {%- if strategy == 'append' and not overriding and iceberg_stream__append_few_rows(relation, select) -%}
    {{ return(none) }}
  {%- endif -%}
  {% do iceberg_stream__check_named_columns(select, adapter.get_columns_in_relation(relation)) %}
  {%- set staging = iceberg_stream__stage_increment(relation, select, strategy) -%}
  {%- if not overriding -%}
    {% do adapter.check_fields(model, staging, adapter.get_columns_in_relation(relation)) %}
  {%- endif -%}
  {%- set changed = process_schema_changes(config.get('on_schema_change') or 'ignore', staging, relation) -%}
  {%- if changed -%}
    {% do iceberg_stream__apply_layout(relation, layout) %}
  {%- endif -%}
  {%- set arguments = {
      'target_relation': relation,
      'temp_relation': staging,
      'unique_key': config.get('unique_key'),
      'dest_columns': changed or adapter.get_columns_in_relation(relation),
      'incremental_predicates': config.get('predicates') or config.get('incremental_predicates'),
  } -%}
  {%- if merges and strategy != 'microbatch' -%}
    {% do iceberg_stream__check_keys(staging, arguments['dest_columns']) %}
  {%- endif -%}
  {%- set rewritten = adapter.merge_by_rewrite(
      relation, staging, iceberg_stream__get_plan(strategy, arguments), model) if merges -%}
  {%- set sql = make_sql(arguments) -%}
  {%- set by_spark = not rewritten or rewritten.merge_engine == 'spark' -%}
  {%- if by_spark and merges and strategy == 'merge' and not iceberg_stream__merge_changes_anything(arguments) -%}
    {% call noop_statement('main', 'MERGE 0 rows', 'MERGE', 0) -%}
      {{ sql }}
    {%- endcall %}
  {%- else -%}
    {% if strategy == 'microbatch' %}{% do adapter.merge_in_turn() %}{% endif %}
    {% do iceberg_stream__run_merge(sql, rewritten) %}
  {%- endif -%}
  {% do adapter.drop_relation(staging) %}
{% endmacro %}

{#- Run a statement that merges, unless the adapter has merged. -#}
{% macro iceberg_stream__run_merge(sql, rewritten) %}
  {%- if rewritten and rewritten.merge_engine == 'rewrite' -%}
    {% do store_result('main', response=rewritten, agate_table=none) %}
    {% do write(sql) %}
    {{ return(none) }}
  {%- endif -%}
  {% call statement('main') -%}
    {{ sql }}
  {%- endcall %}
  {% if rewritten %}
    {% do load_result('main').response.copy_merge_engine(rewritten) %}
  {% endif %}
{% endmacro %}

{#- Append the increment without staging it, if its rows are few; return whether that was done. -#}
{% macro iceberg_stream__append_few_rows(relation, select) %}
  {%- set query = iceberg_stream__get_contract_checked_sql(select) -%}
  {%- if config.get('unique_key') or not iceberg_stream__is_plain_increment(relation, query) -%}
    {{ return(false) }}
  {%- endif -%}
  {%- set appended = adapter.append_few_rows(relation, query) -%}
  {%- if appended -%}
    {% do store_result('main', response=appended, agate_table=none) %}
    {% do write(query) %}
  {%- endif -%}
  {{ return(appended is not none) }}
{% endmacro %}

{#- Return which rows a strategy changes. -#}
{% macro iceberg_stream__get_plan(strategy, arg_dict) %}
  {%- if strategy == 'delete+insert' -%}
    {{ return(iceberg_stream__get_delete_insert_plan(arg_dict)) }}
  {%- elif strategy == 'microbatch' -%}
    {{ return(iceberg_stream__get_microbatch_plan(arg_dict)) }}
  {%- endif -%}
  {{ return(iceberg_stream__get_merge_plan(arg_dict)) }}
{% endmacro %}

{#- Return the macro of the project that writes the SQL of `append`, `merge` or `delete+insert`, if it has
    one. Only that SQL may run then: what this process would write may be something else. -#}
{% macro iceberg_stream__get_overriding_macro(strategy, make_sql) %}
  {#- dbt's parser takes only literal names. -#}
  {%- set dispatched = {
      'append': [adapter.dispatch('get_incremental_append_sql', 'dbt')],
      'merge': [adapter.dispatch('get_incremental_merge_sql', 'dbt'), get_merge_sql,
                adapter.dispatch('get_merge_sql', 'dbt')],
      'delete+insert': [adapter.dispatch('get_incremental_delete_insert_sql', 'dbt'), get_delete_insert_merge_sql,
                        adapter.dispatch('get_delete_insert_merge_sql', 'dbt')],
  } -%}
  {%- set name = iceberg_stream__get_own_macro([make_sql] + dispatched[strategy] if strategy in dispatched else []) -%}
  {%- if name and config.get('merge_engine') == 'rewrite' -%}
    {% do exceptions.raise_compiler_error(
        model.unique_id ~ ': merge_engine is rewrite, but the project has a macro `' ~ name
        ~ '`, whose SQL Spark runs. Remove `merge_engine` or the macro.') %}
  {%- endif -%}
  {{ return(name) }}
{% endmacro %}

{#- Return the first macro that is the project's or another package's; none if all are dbt's and ours. -#}
{% macro iceberg_stream__get_own_macro(macros) %}
  {{ return(macros | map(attribute='macro')
      | rejectattr('package_name', 'in', ['dbt', 'dbt_iceberg_stream']) | map(attribute='name') | first) }}
{% endmacro %}

{#- Whether the increment is one query, whose columns change nothing of the table's schema. -#}
{% macro iceberg_stream__is_plain_increment(relation, query) %}
  {%- if config.get('sql_header') or target.method == 'connect' -%}
    {{ return(false) }}
  {%- elif (config.get('on_schema_change') or 'ignore') == 'ignore' -%}
    {{ return(true) }}
  {%- endif -%}
  {%- set columns = [] -%}
  {%- for of_side in [adapter.get_column_schema_from_query(query), adapter.get_columns_in_relation(relation)] -%}
    {%- set types = {} -%}
    {%- for column in of_side -%}{%- do types.update({column.name | lower: column.data_type}) -%}{%- endfor -%}
    {%- do columns.append(types) -%}
  {%- endfor -%}
  {{ return(columns[0] == columns[1]) }}
{% endmacro %}

{#- Merge the increment without staging it, if its rows are few; return whether that was done. -#}
{% macro iceberg_stream__merge_few_rows(relation, select, strategy) %}
  {%- set query = iceberg_stream__get_contract_checked_sql(select) -%}
  {%- if not iceberg_stream__is_plain_increment(relation, query) -%}
    {{ return(false) }}
  {%- endif -%}
  {%- set arguments = {
      'target_relation': relation,
      'unique_key': config.get('unique_key'),
      'dest_columns': adapter.get_columns_in_relation(relation),
      'incremental_predicates': config.get('predicates') or config.get('incremental_predicates'),
  } -%}
  {%- if adapter.names_unknown_updates(model, arguments['dest_columns']) -%}
    {% do iceberg_stream__check_named_columns(select, arguments['dest_columns']) %}
  {%- endif -%}
  {%- set merged = adapter.merge_few_rows(
      relation, query, iceberg_stream__get_plan(strategy, arguments), model) -%}
  {%- if merged -%}
    {% do store_result('main', response=merged, agate_table=none) %}
    {% do write(query) %}
  {%- endif -%}
  {{ return(merged is not none) }}
{% endmacro %}

{#- Stage the increment as a temporary view. For strategies that may read it more than once, the engine keeps its
    rows: the model's query then runs once. -#}
{% macro iceberg_stream__stage_increment(relation, select, strategy) %}
  {%- set staging = make_temp_relation(relation) -%}
  {%- set checked = iceberg_stream__get_contract_checked_sql(select) -%}
  {%- set reads_twice = strategy not in ('append', 'insert_overwrite')
        or (strategy == 'insert_overwrite' and adapter.partitions_replaced_by(relation, 's', 't')) -%}
  {%- if reads_twice -%}
    {% do adapter.stage_rows(staging, (config.get('sql_header') or '') ~ '\n' ~ checked) %}
  {%- else -%}
    {% do run_query(get_create_table_as_sql(True, staging, select)) %}
  {%- endif -%}
  {{ return(staging) }}
{% endmacro %}
