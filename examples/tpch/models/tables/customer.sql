select * from {{ generated('customer') }}
