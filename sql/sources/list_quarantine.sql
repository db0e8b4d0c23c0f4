-- The quarantine of one log, in the order of its files and lines.
--
-- Inputs:  rows_staged with the columns of QUARANTINE
-- Grain:   (source_file, source_line)
select * from rows_staged order by source_file, source_line
