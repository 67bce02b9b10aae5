select * from {{ generated('lineitem') }}
