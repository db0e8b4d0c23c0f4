-- The heat map H[t][k], sparse (spec 2.1): requests a window and bucket. Windows end at as_of; window 0 is the newest.
-- Inputs:  events (time, bucket); $as_of; $window_s (seconds).
-- Grain:   window_index × bucket, non-zero cells only.
-- A pure SELECT: running it again changes nothing.
SELECT
    (date_diff('microsecond', time, CAST($as_of AS TIMESTAMPTZ)) + CAST($window_s * 1000000 AS BIGINT) - 1)
        // CAST($window_s * 1000000 AS BIGINT) - 1 AS window_index,
    bucket,
    count(*) AS requests
FROM events
WHERE time < CAST($as_of AS TIMESTAMPTZ)
GROUP BY ALL
ORDER BY ALL
