-- Which feedback one log brought to one day.
--
-- Inputs:  rows_staged (columns of FEEDBACK, source_file, source_line, row_sha256)
--          closed (file, lines)  the lines of each file that was read that have an end
-- Grain:   (file, is_open): is_open are lines without end, which will be read again
select
    closed.file, rows_staged.source_line > closed.lines as is_open, list(distinct row_sha256 order by row_sha256) as rows
from rows_staged
join closed on closed.file = rows_staged.source_file
group by closed.file, is_open
order by closed.file, is_open
