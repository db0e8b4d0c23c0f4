-- What the requests of each format lack, of what a log can tell.
--
-- Inputs:  requests with the columns of REQUESTS; $default_model (stands where a log names no model)
-- Grain:   source_format × field
-- An answer is missed only of requests that succeeded. A pure SELECT: running it again changes nothing.
with counted as (
    select
        source_format,
        count(*) as requests,
        count(*) filter (body_json is null) as prompt,
        count(*) filter (is_truncated) as whole_prompt,
        count(*) filter (tenant is null) as tenant,
        count(*) filter (model = $default_model) as model,
        count(*) filter (input_tokens is null) as input_tokens,
        count(*) filter (cached_tokens is null) as cached_tokens,
        count(*) filter (answer_text is null and coalesce(status, 200) < 400) as answer_text,
        count(*) filter (status is null) as status,
        count(*) filter (ttft_ms is null) as ttft_ms,
    from requests
    group by source_format
)
unpivot counted
on prompt, whole_prompt, tenant, model, input_tokens, cached_tokens, answer_text, status, ttft_ms
into name field value missing
order by source_format, field
