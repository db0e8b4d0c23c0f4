-- What one log brought to one day, a row for each part of each file; the duplicates are left out of all counts.
--
-- Inputs:  rows_staged, rows_stored  with the columns of REQUESTS (one day); ranking from rank_requests.sql
--          closed (file, lines)       the lines of each file that was read that have an end
--          known (file, name, first_line, last_line)  what was read and counted before, by the name that its rows have
-- Grain:   (file, is_open, is_displaced): is_open are lines without end, which will be read again; is_displaced are rows
--          that were counted before and now gave way to another row of the same request: they count against the sums
-- Uses: timing is every request; embedding needs a whole prompt; prefix needs one that a model took (no error status);
-- qa needs an answer besides.
with parts as (
    select
        staged.*, closed.file, staged.source_line > closed.lines as is_open, false as is_displaced,
        coalesce(ranking.is_duplicate, false) as is_duplicate
    from rows_staged as staged
    join closed on closed.file = staged.source_file
    left join ranking
        on ranking.is_staged
        and ranking.source_file = staged.source_file
        and ranking.source_line = staged.source_line
        and ranking.old_id = staged.request_id
    union all by name
    select stored.*, known.file, false as is_open, true as is_displaced, false as is_duplicate
    from rows_stored as stored
    join known
        on known.name = stored.source_file
        and stored.source_line between known.first_line and known.last_line
    semi join (from ranking where not is_staged and not is_kept) as displaced
        on displaced.source_file = stored.source_file
        and displaced.source_line = stored.source_line
        and displaced.old_id = stored.request_id
),
told as (
    select
        file, is_open, is_displaced, is_duplicate, time, model, adapter, tenant, cache_salt,
        answer_text is not null as has_answer,
        prompt_sha256 is not null and not coalesce(is_truncated, false) as has_prompt,
        coalesce(status, 200) < 400 and request_type in ('chat', 'completion') as is_generated
    from parts
)
select
    file, is_open, is_displaced,
    count(*) filter (not is_duplicate) as timing,
    count(*) filter (not is_duplicate and has_prompt) as embedding,
    count(*) filter (not is_duplicate and has_prompt and is_generated) as prefix,
    count(*) filter (not is_duplicate and has_prompt and is_generated and has_answer) as qa,
    min(time) filter (not is_duplicate) as first_time,
    max(time) filter (not is_duplicate) as last_time,
    coalesce(list(distinct model) filter (not is_duplicate and model is not null), []) as models,
    coalesce(list(distinct adapter) filter (not is_duplicate and adapter is not null), []) as adapters,
    coalesce(list(distinct tenant) filter (not is_duplicate and tenant is not null), []) as tenants,
    coalesce(list(distinct cache_salt) filter (not is_duplicate and cache_salt is not null), []) as salts
from told
group by file, is_open, is_displaced
order by file, is_open, is_displaced
