{{ config(materialized='incremental', unique_key='booking_id') }}
select booking_id, account, cents + {{ var('fee', 0) }} as cents, booked_on
from {{ source('landing', 'bookings') }}
