-- Which ids stand over several rows, by their hash; a few others may be among them by chance.
--
-- Inputs:  rows_staged, rows_stored  with the columns of REQUESTS (one day)
-- Grain:   id_hash
-- Apart from rank_requests.sql, so that a day without any costs one look at its ids.
select id_hash
from (
    select
        hash(
            case
                when contains(request_id, '~also:') then regexp_replace(request_id, '~also:[0-9a-f]{16}$', '')
                else request_id
            end
        ) as id_hash
    from (
        select request_id from rows_staged
        union all
        select request_id from rows_stored
    )
)
group by id_hash
having count(*) > 1
