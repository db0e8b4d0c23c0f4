-- The model names that the requests of the lookback carry.
-- Inputs:  requests (lake/schemas.py); $since, $as_of (UTC).
-- Grain:   logged_model, null included.
-- A pure SELECT: running it again changes nothing.
SELECT model AS logged_model, adapter AS logged_adapter, count(*) AS requests
FROM requests
WHERE time >= $since AND time < $as_of
GROUP BY ALL
ORDER BY ALL
