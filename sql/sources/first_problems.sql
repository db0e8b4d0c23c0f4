-- The first rows of a quarantine, a few of each reason, in the order of files and lines.
--
-- Inputs:  quarantine with the columns of QUARANTINE; $per_reason
-- Grain:   (source_file, source_line)
-- A pure SELECT: running it again changes nothing.
select source_file, source_line, reason, detail
from quarantine
qualify row_number() over (partition by reason order by source_file, source_line) <= $per_reason
order by source_file, source_line
