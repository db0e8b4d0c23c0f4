-- Which of several rows that are one request stays, and which staged rows are duplicates.
--
-- Inputs:  rows_staged, rows_stored  with the columns of REQUESTS (one day)
--          former (file, name)  names that the rows of a renamed file have: a line that is read again is the same line
--          repeated from repeated_ids.sql
-- Grain:   one row a staged or stored row whose id stands over several rows; all others stay as they are
-- Output:  is_staged, source_file, source_line, old_id, new_id, is_kept, is_duplicate
--
-- Rows of one id are one request when their tenants agree and their prompts agree or one of them has none. An id that
-- stands over several of those is several requests: all but the earliest get a mark behind the id.
-- Of equal rows the one that says most stays; ties go by file and line, so that the order of reading changes nothing,
-- and a row read again replaces itself. A staged row is a duplicate when another line's row stays in its place.
-- Of a trace of block hashes the id alone tells: its prompts, if any, were derived, by whichever rule.
-- Idempotent: the ids of the output give themselves when they come in again.
with every_row as (
    select true as is_staged, block_hashes is not null as is_hashed, * exclude (block_hashes) from rows_staged
    union all by name
    select false as is_staged, block_hashes is not null as is_hashed, * exclude (block_hashes) from rows_stored
),
with_raw_id as (
    select
        is_staged, source_file, source_line, request_id as old_id, time, coalesce(tenant, '') as tenant,
        case when not is_hashed then prompt_sha256 end as prompt_sha256,
        case
            when contains(request_id, '~also:') then regexp_replace(request_id, '~also:[0-9a-f]{16}$', '')
            else request_id
        end as raw_id,
        (prompt_sha256 is not null and not is_hashed)::int + (not coalesce(is_truncated, false))::int + (cached_tokens is not null)::int
        + (ttft_ms is not null)::int + (status is not null)::int + (answer_text is not null)::int as told
    from every_row
),
contested as (
    select * from with_raw_id semi join repeated on repeated.id_hash = hash(with_raw_id.raw_id)
),
with_mark as (
    select
        *,
        left(sha256(tenant || '|' || coalesce(prompt_sha256, first_value(prompt_sha256 ignore nulls) over (
            partition by raw_id, tenant order by time, prompt_sha256
            rows between unbounded preceding and unbounded following
        ), '')), 16) as mark
    from contested
),
with_first_mark as (
    select
        *,
        first_value(mark) over (
            partition by raw_id order by time, mark rows between unbounded preceding and unbounded following
        ) as first_mark
    from with_mark
),
ranked as (
    select
        *,
        row_number() over same_request as position,
        first_value(source_file) over same_request as kept_file,
        first_value(source_line) over same_request as kept_line
    from with_first_mark
    window same_request as (
        partition by raw_id, mark order by told desc, source_file, source_line, is_staged desc
        rows between unbounded preceding and unbounded following
    )
)
select
    is_staged, source_file, source_line, old_id,
    raw_id || case when mark <> first_mark then '~also:' || mark else '' end as new_id,
    position = 1 as is_kept,
    is_staged and (source_file <> kept_file or source_line <> kept_line) and not exists (
        from former
        where former.file = ranked.source_file and former.name = ranked.kept_file
            and ranked.source_line = ranked.kept_line
    ) as is_duplicate
from ranked
