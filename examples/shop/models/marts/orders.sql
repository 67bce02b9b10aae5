{{ config(
    materialized='incremental',
    incremental_strategy='merge',
    unique_key='order_id',
    partition_by=['month(order_date)'],
) }}

with payments as (
    select
        order_id,
        sum(amount) as amount
    from {{ ref('stg_payments') }}
    group by order_id
)

select
    orders.order_id,
    orders.customer_id,
    orders.order_date,
    orders.status,
    orders.coupon,
    payments.amount,
    orders.updated_at
from {{ ref('stg_orders') }} as orders
left join payments on payments.order_id = orders.order_id
{% if is_incremental() %}
-- Reads and merges only rows that are new or changed since the last run.
where orders.updated_at > (select max(updated_at) from {{ this }})
{% endif %}
