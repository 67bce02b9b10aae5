{#- A model with grants is refused before it runs (see materializations/model_config.py): there is nothing to apply. -#}
{% macro iceberg_stream__apply_grants(relation, grant_config, should_revoke=True) %}
{% endmacro %}
