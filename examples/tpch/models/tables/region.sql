select * from {{ generated('region') }}
