{#- No catalog keeps functions: statements get them from the project. So building a function checks
    it: its config, and its code as far as Spark looks at it before it runs. -#}
{% materialization function, adapter='iceberg_stream', supported_languages=['sql', 'python', 'javascript'] %}
  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks) }}

  {% call statement('main') -%}
    {{ adapter.get_function_check_sql(model) }}
  {%- endcall %}

  {{ run_hooks(post_hooks) }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}

  {{ return({'relations': []}) }}
{% endmaterialization %}
