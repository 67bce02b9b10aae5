-- The customers' spending equals the revenue of all days, to the cent.
with totals as (
    select
        (select sum(spent) from {{ ref('customers') }}) as spent,
        (select sum(revenue) from {{ ref('daily_revenue') }}) as earned
)

select *
from totals
where spent <> earned or spent is null
