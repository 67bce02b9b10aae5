{{ config(
    unique_key='customer_id',
    stored_as_scd_type=2,
    sequence_by='changed_at',
    apply_as_deletes="op = 'd'",
    except=['op', 'changed_at'],
) }}

with changes as (
    select
        coalesce(after, before) as customer,
        op,
        ts_ms
    from {{ stream(source('shop', 'customers')) }}
)

select
    customer.customer_id as customer_id,
    customer.name as name,
    customer.city as city,
    op,
    timestamp_millis(ts_ms) as changed_at
from changes
