-- The requests of one window that can be sent again, in the order in which they came.
-- Inputs: requests (lake data set requests, the days that the window touches); $from, $until (UTC).
-- Grain: request_id. Idempotent: reads only.
SELECT request_id, tenant, model, adapter, cache_salt, session_id, body_json
FROM requests
WHERE time >= $from
  AND time < $until
  AND body_json IS NOT NULL
  AND NOT coalesce(is_truncated, false)
  AND coalesce(request_type, 'unknown') <> 'embedding'
ORDER BY time, request_id
