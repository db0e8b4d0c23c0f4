-- Block hits of one arm's replayed requests, by minute after as_of.
-- Inputs:  replay (rows of one arm), requests (of the days that the window touches); $arm, $as_of.
-- Grain:   minute. Requests whose hits the engine did not tell are left out: null is not 0.
-- A pure SELECT: running it again changes nothing.
SELECT
    CAST($arm AS VARCHAR) AS arm,
    CAST(floor(date_diff('second', CAST($as_of AS TIMESTAMPTZ), requests.time) / 60) AS BIGINT) AS minute,
    CAST(sum(replay.hit_blocks) AS BIGINT) AS hit_blocks,
    CAST(sum(replay.full_blocks) AS BIGINT) AS full_blocks,
    count(*) AS n_requests
FROM replay
JOIN requests USING (request_id)
WHERE replay.hit_blocks IS NOT NULL
GROUP BY ALL
ORDER BY minute
