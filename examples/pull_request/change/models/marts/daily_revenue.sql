{{ config(unique_key='order_date', partition_by=['month(order_date)']) }}

select
    order_date,
    count(*) as orders,
    sum(amount) as revenue
from {{ ref('orders') }}
where status not in ('returned', 'placed')
group by order_date
