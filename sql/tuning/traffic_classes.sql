-- How often each model, adapter and request type was asked for in [since, until), as the log names them.
-- Inputs: requests (lake data set requests, any days); $since, $until (UTC).
-- Grain: model, adapter, request_type, in this order.
-- Idempotent: reads only.
SELECT
    model,
    adapter,
    coalesce(request_type, 'unknown') AS request_type,
    count(*) AS requests
FROM requests
WHERE time >= $since
  AND time < $until
  AND coalesce(request_type, 'unknown') <> 'embedding'
GROUP BY ALL
ORDER BY ALL
