-- The feed has a row for each change of a customer; the latest one counts.
with changes as (
    select
        *,
        row_number() over (partition by customer_id order by updated_at desc) as age
    from {{ ref('raw_customers') }}
    where cast(updated_at as date) <= {{ today() }}
)

select
    customer_id,
    concat(first_name, ' ', last_name) as name,
    email,
    city,
    updated_at
from changes
where age = 1
