-- The new content of one day, row by row where each stands: every request once, in time order.
--
-- Inputs:  rows_staged, rows_stored  with the columns of REQUESTS (one day) and run, row: where a row stands
--          ranking from rank_requests.sql
-- Grain:   request_id
-- Output:  run, row, and new_id where the request gets another id than the row has
-- Idempotent: staged rows that are stored already give the stored content again.
with every_row as (
    select true as is_staged, run, row, time, request_id, source_file, source_line from rows_staged
    union all
    select false as is_staged, run, row, time, request_id, source_file, source_line from rows_stored
)
select every_row.run, every_row.row, nullif(ranking.new_id, every_row.request_id) as new_id
from every_row
left join ranking
    on ranking.is_staged = every_row.is_staged
    and ranking.source_file = every_row.source_file
    and ranking.source_line = every_row.source_line
    and ranking.old_id = every_row.request_id
where coalesce(ranking.is_kept, true)
order by every_row.time, coalesce(ranking.new_id, every_row.request_id)
