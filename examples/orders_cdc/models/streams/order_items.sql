{{ config(unique_key='item_id') }}

select
    item_id,
    order_id,
    product,
    quantity,
    price,
    timestamp_micros(updated_at) as updated_at
from {{ stream(source('shop', 'order_items')) }}
