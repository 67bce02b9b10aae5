select
    orders.status,
    count(distinct orders.order_id) as orders,
    sum(items.quantity * items.price) as revenue
from {{ ref('orders') }} as orders
inner join {{ ref('order_items') }} as items on items.order_id = orders.order_id
group by orders.status
