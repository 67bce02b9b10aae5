{{ config(unique_key='customer_id') }}

select
    customers.customer_id,
    customers.name,
    customers.city,
    min(orders.order_date) as first_order,
    max(orders.order_date) as last_order,
    count(orders.order_id) as orders,
    coalesce(sum(orders.amount), 0) as spent,
    cast(round(avg(orders.amount), 2) as decimal(10, 2)) as average_order
from {{ ref('stg_customers') }} as customers
left join {{ ref('orders') }} as orders
    on orders.customer_id = customers.customer_id
    and orders.status not in ('returned', 'placed')
group by
    customers.customer_id,
    customers.name,
    customers.city
