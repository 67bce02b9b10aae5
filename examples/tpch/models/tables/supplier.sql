select * from {{ generated('supplier') }}
