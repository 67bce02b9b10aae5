-- In another catalog.
{{ config(materialized='incremental', unique_key=['month', 'account'], database='archive', write_branch=none) }}
select '{{ var("month") }}' as month, account, balance
from {{ ref('balances') }}
