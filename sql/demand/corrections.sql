-- The corrections that replace an answer (spec 1.2): feedback with confidence < 0.85 and the correction adopted at least
-- three times, the newest one a prompt or intent, never one of as_of or later.
-- Inputs:  feedback (items.Feedback); $as_of (UTC).
-- Grain:   tenant × prompt_sha256 × intent_hash.
-- A pure SELECT: running it again changes nothing.
SELECT tenant, prompt_sha256, intent_hash, arg_max(correction, (time, correction)) AS correction, max(time) AS time
FROM feedback
WHERE time < $as_of AND confidence < 0.85 AND adopted_count >= 3 AND correction IS NOT NULL
GROUP BY tenant, prompt_sha256, intent_hash
ORDER BY tenant, prompt_sha256, intent_hash
