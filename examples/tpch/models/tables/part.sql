select * from {{ generated('part') }}
