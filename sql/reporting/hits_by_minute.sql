-- Block hits of the replayed requests, by minute after as_of.
-- Inputs: replay (one arm's rows), requests (time by request_id), $arm, $as_of.
-- Grain: minute. Idempotent: reads only. Rows whose hits the engine did not tell are left out: null is not 0.
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
