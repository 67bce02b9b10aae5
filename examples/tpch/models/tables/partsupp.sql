select * from {{ generated('partsupp') }}
