-- The names that a log uses and the time that it spans.
-- In: view requests (lake requests). Grain: (kind, name); kind is model, adapter or tenant, the busiest first.
-- Reads only.
WITH named AS (
    SELECT 'model' AS kind, model AS name, cache_salt, time FROM requests
    UNION ALL
    SELECT 'adapter', adapter, cache_salt, time FROM requests
    UNION ALL
    SELECT 'tenant', tenant, cache_salt, time FROM requests
)
SELECT kind, name, count(*) AS requests, count(cache_salt) AS salted, min(time) AS first_time, max(time) AS last_time
FROM named
GROUP BY kind, name
ORDER BY kind, requests DESC, name
