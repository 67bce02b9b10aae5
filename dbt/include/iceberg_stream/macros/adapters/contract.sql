{#- Iceberg has no constraint except "required", so a contract is checked on the rows as they are
    written. A row that violates it fails the statement, and nothing is committed. -#}
{% macro iceberg_stream__get_contract_checked_sql(sql) -%}
  {%- set contract = config.get('contract') -%}
  {%- if contract and contract.enforced -%}
    {{ get_assert_columns_equivalent(sql) }}
    {%- set checks = iceberg_stream__get_constraint_checks() -%}
    select * from (
      {{ get_select_subquery(sql) }}
    ) as model_contract
    {%- if checks %}
    where {{ checks | join('\n      and ') }}
    {%- endif -%}
  {%- else -%}
    {{ sql }}
  {%- endif -%}
{%- endmacro %}

{% macro iceberg_stream__get_constraint_checks() %}
  {%- set checks = [] -%}
  {%- for name, column in model.columns.items() -%}
    {%- set quoted = adapter.quote(name) -%}
    {%- for constraint in column.constraints -%}
      {%- if constraint.type == 'not_null' -%}
        {%- do checks.append(iceberg_stream__get_row_check_sql(quoted ~ ' is not null', 'column ' ~ name ~ ' is not null')) -%}
      {%- elif constraint.type == 'check' -%}
        {%- do checks.append(iceberg_stream__get_row_check_sql(constraint.expression, 'check ' ~ constraint.expression)) -%}
      {%- endif -%}
    {%- endfor -%}
  {%- endfor -%}
  {%- for constraint in model.constraints if constraint.type == 'check' -%}
    {%- do checks.append(iceberg_stream__get_row_check_sql(constraint.expression, 'check ' ~ constraint.expression)) -%}
  {%- endfor -%}
  {{ return(checks) }}
{% endmacro %}

{% macro iceberg_stream__get_row_check_sql(expression, label) -%}
  {%- set message = 'Contract of ' ~ model.unique_id ~ ' is broken: a row violates the constraint: ' ~ label -%}
  if(coalesce({{ adapter.as_operand(expression) }}, true), true, cast(raise_error({{ iceberg_stream__sql_literal(message) }}) as boolean))
{%- endmacro %}

{% macro iceberg_stream__require_not_null_columns(relation) %}
  {%- set contract = config.get('contract') -%}
  {%- if contract and contract.enforced -%}
    {%- set required = [] -%}
    {%- for name, column in model.columns.items() -%}
      {%- if column.constraints | selectattr('type', 'equalto', 'not_null') | list -%}
        {%- do required.append(name) -%}
      {%- endif -%}
    {%- endfor -%}
    {%- if required -%}
      {% do adapter.require_columns(relation, required) %}
    {%- endif -%}
  {%- endif -%}
{% endmacro %}
