-- The same table twice: as it is, and as it was when March was closed.
select account, b.balance, b.balance - coalesce(march.balance, 0) as since_march
from {{ ref('balances') }} as b
left join {{ ref('balances').at(tag='closing-2026-03') }} as march using (account)
