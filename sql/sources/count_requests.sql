-- What one log brought to one day, duplicates left out.
--
-- Inputs:  rows_staged  with the columns of REQUESTS; ranking from rank_requests.sql
-- Grain:   one row
-- Uses: timing is every request; embedding needs a whole prompt; prefix needs one that a model took (no error status);
-- qa needs an answer besides.
with usable as (
    select
        rows_staged.* exclude (body_json, answer_text),
        rows_staged.answer_text is not null as has_answer,
        prompt_sha256 is not null and not coalesce(is_truncated, false) as has_prompt,
        coalesce(status, 200) < 400 as is_accepted
    from rows_staged
    semi join (select * from ranking where is_staged and not is_duplicate) as counted
        on counted.source_file = rows_staged.source_file and counted.source_line = rows_staged.source_line
)
select
    count(*) as requests_usable,
    count(*) as timing,
    count(*) filter (has_prompt) as embedding,
    count(*) filter (has_prompt and is_accepted and request_type in ('chat', 'completion')) as prefix,
    count(*) filter (has_prompt and is_accepted and has_answer and request_type in ('chat', 'completion')) as qa,
    min(time) as first_time,
    max(time) as last_time,
    coalesce(list(distinct model) filter (model is not null), []) as models,
    coalesce(list(distinct adapter) filter (adapter is not null), []) as adapters,
    coalesce(list(distinct tenant) filter (tenant is not null), []) as tenants,
    coalesce(list(distinct cache_salt) filter (cache_salt is not null), []) as salts
from usable
