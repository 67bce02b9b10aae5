-- Each closing is a tag: a name for the snapshot, which keeps it from expiring.
{{ config(tag_on_success={'name': 'closing-' ~ var('month'), 'replace': true}) }}
select account, {{ function('in_euros') }}(sum(cents)) as balance, count(*) as bookings
from {{ ref('bookings') }}
group by account
