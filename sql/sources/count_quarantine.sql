-- How often each fault stands in the quarantine of one log.
--
-- Inputs:  rows_staged with the columns of QUARANTINE
-- Grain:   reason
select reason, count(*) as rows from rows_staged group by reason order by rows desc, reason
