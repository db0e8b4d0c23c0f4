-- The requests of one traffic class in [since, until), with the columns that a replay reads.
-- Inputs: requests (lake data set requests, any days); names (Arrow: model, adapter, request_type as the log has them,
--         one row for each of the class's spellings); $since, $until (UTC).
-- Grain: request_id.
-- Idempotent: reads only.
SELECT requests.*
FROM requests
SEMI JOIN names
    ON requests.model IS NOT DISTINCT FROM names.model
    AND requests.adapter IS NOT DISTINCT FROM names.adapter
    AND coalesce(requests.request_type, 'unknown') = names.request_type
WHERE requests.time >= $since
  AND requests.time < $until
