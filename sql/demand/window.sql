-- The requests of [since, as_of) that the fleet serves, under the fleet's names. Never a row at or after as_of.
-- Inputs:  requests (lake/schemas.py); served (logged_model, logged_adapter, model, adapter); $since, $as_of (UTC);
--          $tenants, $models (empty lists mean all).
-- Grain:   request_id. Requests that the engine refused as wrong (4xx but for timeouts and throttling) are no demand.
-- A pure SELECT: running it again changes nothing.
SELECT
    r.request_id, r.time, r.tenant, s.model, s.adapter, r.cache_salt, r.request_type, r.session_id, r.prompt_sha256,
    CASE WHEN r.body_json IS NULL THEN NULL ELSE sha256(r.body_json) END AS body_sha256,
    r.body_json, coalesce(r.is_truncated, false) AS is_truncated, r.status, r.latency_ms, r.input_tokens,
    r.block_hashes[1] AS first_block_hash
FROM requests AS r
JOIN served AS s
    ON r.model IS NOT DISTINCT FROM s.logged_model AND r.adapter IS NOT DISTINCT FROM s.logged_adapter
WHERE r.time >= $since AND r.time < $as_of
    AND (len(CAST($tenants AS VARCHAR[])) = 0 OR list_contains(CAST($tenants AS VARCHAR[]), r.tenant))
    AND (len(CAST($models AS VARCHAR[])) = 0 OR list_contains(CAST($models AS VARCHAR[]), s.model))
    AND (r.status IS NULL OR r.status < 400 OR r.status IN (408, 429, 499) OR r.status >= 500)
ORDER BY r.time, r.request_id
