-- The new feedback of one day: each row once, in time order.
--
-- Inputs:  rows_staged (columns of FEEDBACK, source_file, source_line, row_sha256), rows_stored (columns of FEEDBACK)
-- Grain:   the whole row, since feedback has no id
-- Idempotent: rows that are stored already change nothing.
select distinct * from (
    select * exclude (source_file, source_line, row_sha256) from rows_staged
    union all by name
    select * from rows_stored
)
order by time, tenant, prompt_sha256, intent_hash, confidence, correction, adopted_count
