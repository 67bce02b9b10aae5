{{ config(materialized='view') }}

select
    customer_id,
    name,
    city,
    __START_AT as since
from {{ ref('customers_history') }}
where __END_AT is null
