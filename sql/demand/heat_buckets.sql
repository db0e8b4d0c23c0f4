-- Heat and temporal intensity of each bucket (spec 2.1): heat = sum of requests · exp(-age/tau) over its windows,
-- intensity = population std / mean over all windows, zero ones included; 0 for an empty bucket or a single window.
-- Inputs:  cells (heat_cells.sql); $windows, $buckets (counts); $window_s, $tau_fast_s, $tau_slow_s (seconds).
-- Grain:   bucket, all of them.
-- A pure SELECT: running it again changes nothing.
WITH sums AS (
    SELECT
        k.bucket,
        CAST(coalesce(sum(c.requests), 0) AS BIGINT) AS requests,
        CAST(coalesce(sum(c.requests * c.requests), 0) AS DOUBLE) AS squares,
        coalesce(sum(c.requests * exp(-c.window_index * $window_s / $tau_fast_s)), 0) AS heat_fast,
        coalesce(sum(c.requests * exp(-c.window_index * $window_s / $tau_slow_s)), 0) AS heat_slow
    FROM (SELECT CAST(range AS INTEGER) AS bucket FROM range($buckets)) AS k
    LEFT JOIN cells AS c ON c.bucket = k.bucket
    GROUP BY k.bucket
)
SELECT
    bucket, requests, heat_fast, heat_slow,
    CASE
        WHEN requests = 0 OR $windows = 1 THEN 0.0
        ELSE sqrt(greatest(0.0, $windows * squares - CAST(requests AS DOUBLE) * requests)) / requests
    END AS intensity
FROM sums
ORDER BY bucket
