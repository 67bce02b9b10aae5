{{ config(unique_key='order_id') }}

select
    order_id,
    customer_id,
    status,
    timestamp_micros(updated_at) as updated_at
from {{ stream(source('shop', 'orders')) }}
