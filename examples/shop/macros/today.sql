{#
  The shop's calendar. The seeds contain later rows, too; staging shows what is known today.
#}
{% macro today() -%}
    date '{{ env_var("SHOP_TODAY", "2026-03-31") }}'
{%- endmacro %}
