-- Requests of the last day before as_of, by bucket and slot of $slot_s seconds; the newest slot has the highest number.
-- Inputs:  heat_cells (demand's heat_cells: window_index, bucket, requests; window 0 ends at as_of); $window_s, $slot_s
--          (seconds), $slots (count).
-- Grain:   bucket × slot, non-zero cells only.
-- A pure SELECT: running it again changes nothing.
SELECT
    CAST(bucket AS INTEGER) AS bucket,
    CAST($slots - 1 - (window_index * $window_s) // $slot_s AS INTEGER) AS slot,
    CAST(sum(requests) AS BIGINT) AS n_requests
FROM heat_cells
WHERE window_index * $window_s < $slots * $slot_s
GROUP BY ALL
ORDER BY bucket, slot
