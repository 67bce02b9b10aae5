cast(cents / 100 as decimal(12, 2))
