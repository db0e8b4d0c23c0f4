-- Requests of the last day before as_of by bucket and slot of $slot_s seconds.
-- Inputs: heat (window_start, bucket, n_requests), $as_of, $slot_s, $slots.
-- Grain: (bucket, slot); slot 0 begins $slots * $slot_s seconds before as_of. Idempotent: reads only.
WITH aged AS (
    SELECT
        bucket,
        n_requests,
        $slots - 1 - CAST(floor(
            (epoch(CAST($as_of AS TIMESTAMPTZ)) - epoch(window_start) - 0.001) / $slot_s
        ) AS INTEGER) AS slot
    FROM heat
    WHERE window_start < CAST($as_of AS TIMESTAMPTZ)
)
SELECT
    CAST(bucket AS INTEGER) AS bucket,
    slot,
    CAST(sum(n_requests) AS BIGINT) AS n_requests
FROM aged
WHERE slot >= 0
GROUP BY ALL
ORDER BY bucket, slot
