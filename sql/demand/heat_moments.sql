-- Spatial dispersion of each moment (spec 2.1): entropy of H[t,:]/sum in nats, and concentration = 1 - entropy/ln(buckets).
-- A moment without requests has no value: null, not 0.
-- Inputs:  cells (heat_cells.sql); $windows, $buckets (counts).
-- Grain:   window_index, all of them; 0 is the newest.
-- A pure SELECT: running it again changes nothing.
WITH totals AS (
    SELECT window_index, sum(requests) AS total FROM cells GROUP BY window_index
),
entropies AS (
    SELECT
        c.window_index,
        any_value(t.total) AS requests,
        greatest(0.0, -sum((c.requests / t.total) * ln(c.requests / t.total))) AS entropy_nats
    FROM cells AS c JOIN totals AS t ON t.window_index = c.window_index
    GROUP BY c.window_index
)
SELECT
    CAST(w.range AS BIGINT) AS window_index,
    CAST(coalesce(e.requests, 0) AS BIGINT) AS requests,
    e.entropy_nats,
    1 - e.entropy_nats / ln($buckets) AS concentration
FROM range($windows) AS w
LEFT JOIN entropies AS e ON e.window_index = w.range
ORDER BY w.range
