{#- As dbt's, without `commit`: each statement is its own commit. Hooks with `transaction: false` run before the other
    pre-hooks and after the other post-hooks. dbt finds this macro by its name, also in materializations of a project. -#}
{% macro run_hooks(hooks, inside_transaction=True) %}
  {%- for hook in hooks | selectattr('transaction', 'equalto', inside_transaction) -%}
    {% do adapter.begin_hook() %}
    {%- set rendered = render(hook.get('sql')) | trim -%}
    {%- if rendered -%}
      {% call statement(auto_begin=False) -%}
        {{ rendered }}
      {%- endcall %}
    {%- endif -%}
    {% do adapter.end_hook(model) %}
  {%- endfor -%}
{% endmacro %}
