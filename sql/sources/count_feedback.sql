-- How many different feedback rows one log brought to one day.
--
-- Inputs:  rows_staged (columns of FEEDBACK, source_file, source_line)
-- Grain:   one row
select count(*) as staged, (select count(*) from (select distinct * exclude (source_file, source_line) from rows_staged)) as kept
from rows_staged
