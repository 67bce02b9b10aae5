select * from {{ generated('nation') }}
