{# The shop's calendar: the seeds hold what comes later too, and staging shows what is known today. #}
{% macro today() -%}
    date '{{ env_var("SHOP_TODAY", "2026-03-31") }}'
{%- endmacro %}
