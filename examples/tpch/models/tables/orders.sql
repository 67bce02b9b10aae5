select * from {{ generated('orders') }}
