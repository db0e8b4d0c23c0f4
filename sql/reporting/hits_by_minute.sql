-- Block hits of the replayed requests by arm and minute after as_of, over requests whose hits are told in every arm.
-- Inputs:  replay (all arms' rows), requests (of the days that the window touches); $arms (count), $as_of.
-- Grain:   arm × minute. Requests whose hits the engine did not tell are left out: null is not 0.
-- A pure SELECT: running it again changes nothing.
WITH told AS (
    SELECT profile, arm, request_id, hit_blocks, full_blocks
    FROM replay
    WHERE hit_blocks IS NOT NULL
    QUALIFY count(*) OVER (PARTITION BY profile, request_id) = $arms
)
SELECT
    told.arm,
    CAST(floor(date_diff('second', CAST($as_of AS TIMESTAMPTZ), requests.time) / 60) AS BIGINT) AS minute,
    CAST(sum(told.hit_blocks) AS BIGINT) AS hit_blocks,
    CAST(sum(told.full_blocks) AS BIGINT) AS full_blocks,
    count(*) AS n_requests
FROM told
JOIN requests USING (request_id)
GROUP BY ALL
ORDER BY arm, minute
