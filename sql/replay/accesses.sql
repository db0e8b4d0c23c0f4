-- The requests of [since, until) whose blocks can be told, in the order in which they came, the log's own among equals.
-- Inputs: requests (lake data set requests, any days); $since, $until (UTC).
-- Grain: request_id; scope numbers model, adapter and cache salt, within which alone blocks are shared; requests counts
--        all requests of the window but embeddings, those that are left out included.
-- Idempotent: reads only.
SELECT
    epoch_us(time) AS time_us,
    dense_rank() OVER (ORDER BY model, adapter, cache_salt) AS scope,
    block_hashes,
    block_tokens,
    CASE WHEN block_hashes IS NULL THEN body_json END AS body_json,
    input_tokens,
    cached_tokens,
    ttft_ms,
    count(*) OVER () AS requests
FROM requests
WHERE time >= $since
  AND time < $until
  AND coalesce(request_type, 'unknown') <> 'embedding'
QUALIFY (block_hashes IS NOT NULL OR body_json IS NOT NULL) AND NOT coalesce(is_truncated, false)
ORDER BY time, source_file, source_line, request_id
