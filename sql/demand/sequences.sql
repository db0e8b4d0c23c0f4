-- How often each distinct prompt was asked, how warm it is, and two forecasts of its uses in the horizon.
--
-- static_uses: the lookback's rate, carried forward.
-- dynamic_uses: the next tau_slow seconds look like the last ones (exponentially weighted rate), the rest of the horizon
-- looks like the same hours of earlier days; without a whole day of history, like the lookback's rate.
-- back_*: the same two forecasts made backtest_s before as_of, and what then came; they decide between the two.
--
-- Inputs:  requests_window (window.sql); $as_of; $span_s (history that a rate is taken over), $observed_s
--          (history there is), $horizon_s, $backtest_s, $window_s,
--          $tau_fast_s, $tau_slow_s (seconds).
-- Grain:   tenant × model × adapter × cache_salt × request_type × prompt_sha256 × body_sha256 × is_truncated.
-- A pure SELECT: running it again changes nothing.
WITH vantage AS (
    SELECT * FROM (VALUES
        ('plan', CAST($as_of AS TIMESTAMPTZ), CAST($span_s AS DOUBLE), CAST($horizon_s AS DOUBLE)),
        ('back', CAST($as_of AS TIMESTAMPTZ) - to_microseconds(CAST($backtest_s * 1000000 AS BIGINT)),
            CAST($observed_s AS DOUBLE) - $backtest_s, CAST($backtest_s AS DOUBLE))
    ) AS v (name, seen_from, span_s, horizon_s)
),
aged AS (
    SELECT
        r.*, v.name, v.span_s, v.horizon_s, least(v.horizon_s, $tau_slow_s) AS recent_s,
        date_diff('microsecond', r.time, v.seen_from) AS age_us
    FROM requests_window AS r CROSS JOIN vantage AS v
),
timed AS (
    SELECT
        *,
        -- the windows end at the vantage point: the newest one has age 0
        greatest(0, (age_us + CAST($window_s * 1000000 AS BIGINT) - 1) // CAST($window_s * 1000000 AS BIGINT) - 1) * $window_s
            AS age_s,
        -- seconds from the vantage point to the next time that the clock shows this request's time of day
        CAST((86400000000 - age_us % 86400000000) % 86400000000 AS DOUBLE) / 1e6 AS offset_s
    FROM aged
),
forecast AS (
    SELECT
        *,
        exp(-age_s / $tau_slow_s) AS weight_slow,
        exp(-age_s / $tau_fast_s) AS weight_fast,
        horizon_s / span_s AS static_part,
        exp(-age_s / $tau_slow_s) * recent_s / ($tau_slow_s * (1 - exp(-span_s / $tau_slow_s)))
        + CASE
            WHEN span_s < 86400 THEN (horizon_s - recent_s) / span_s
            ELSE (greatest(0, ceil((horizon_s - offset_s) / 86400)) - greatest(0, ceil((recent_s - offset_s) / 86400)))
                / greatest(1, floor((span_s + offset_s) / 86400))
        END AS dynamic_part
    FROM timed
)
SELECT
    tenant, model, adapter, cache_salt, request_type, prompt_sha256, body_sha256, is_truncated,
    any_value(body_json) AS body_json,
    count(*) FILTER (name = 'plan') AS uses,
    count(*) FILTER (name = 'plan' AND status = 200) AS ok_uses,
    min(time) AS first_seen,
    max(time) AS last_seen,
    coalesce(sum(weight_fast) FILTER (name = 'plan'), 0) AS heat_fast,
    coalesce(sum(weight_slow) FILTER (name = 'plan'), 0) AS heat_slow,
    coalesce(sum(static_part) FILTER (name = 'plan'), 0) AS static_uses,
    coalesce(sum(dynamic_part) FILTER (name = 'plan'), 0) AS dynamic_uses,
    coalesce(sum(static_part) FILTER (name = 'back' AND age_us > 0), 0) AS back_static_uses,
    coalesce(sum(dynamic_part) FILTER (name = 'back' AND age_us > 0), 0) AS back_dynamic_uses,
    count(*) FILTER (name = 'back' AND age_us <= 0) AS back_actual_uses,
    avg(latency_ms) FILTER (name = 'plan' AND status = 200) AS latency_ms,
    max(input_tokens) AS input_tokens,
    list_sort(list(DISTINCT session_id) FILTER (session_id IS NOT NULL)) AS sessions
FROM forecast
GROUP BY tenant, model, adapter, cache_salt, request_type, prompt_sha256, body_sha256, is_truncated
ORDER BY uses DESC, prompt_sha256, body_sha256, tenant, model, adapter, cache_salt, request_type, is_truncated
