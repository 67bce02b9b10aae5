select
    payment_id,
    order_id,
    method,
    amount
from {{ ref('raw_payments') }}
where paid_on <= {{ today() }}
