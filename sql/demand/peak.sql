-- The hour of the day, UTC, that most requests fall into; of equal ones the earliest. No row where there are no requests.
-- Inputs:  requests (lake.schemas.REQUESTS); $since, $as_of (UTC).
-- Grain:   one row.
-- A pure SELECT: running it again changes nothing.
SELECT hour(timezone('UTC', time)) AS hour, count(*) AS requests
FROM requests
WHERE time >= $since AND time < $as_of
GROUP BY 1
ORDER BY requests DESC, hour
LIMIT 1
