-- The feed has a row for each change of an order; the latest one counts.
with changes as (
    select
        *,
        row_number() over (partition by order_id order by updated_at desc) as age
    from {{ ref('raw_orders') }}
    where cast(updated_at as date) <= {{ today() }}
)

select
    order_id,
    customer_id,
    order_date,
    status,
    coupon,
    updated_at
from changes
where age = 1
