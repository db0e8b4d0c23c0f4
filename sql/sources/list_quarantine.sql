-- The quarantine of one log, in the order of its files and lines: what was read now, and what stands as it was.
--
-- Inputs:  rows_staged, rows_stored  with the columns of QUARANTINE
--          kept (file, name, lines)  files that were not read from their beginning: the name that their rows have, and
--                                    up to which line those still hold
-- Grain:   (source_file, source_line)
select * from rows_staged
union all by name
select rows_stored.* replace (kept.file as source_file)
from rows_stored
join kept on kept.name = rows_stored.source_file and rows_stored.source_line <= kept.lines
order by source_file, source_line
