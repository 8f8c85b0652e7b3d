-- What only all tables of a rank together can say. Each statement is run by link.py, in order. What takes the place
-- of a canonical table has its columns and their types.

-- name: ranks
-- Readers each tell what they know of the rank; the first answer wins.
create or replace table ranks as
select {first_answers} from ranks;

-- name: groups
-- One row per group: the fullest statement wins.
create or replace table groups as
select * from groups
qualify row_number() over (
    partition by coalesce(group_hash, group_name) order by len(global_ranks) desc nulls last
) = 1;

-- name: comm_rows
-- Communication rows of the kernel table that no operation of the timeline stands for (none was recorded,
-- or the timeline is cut).
insert into comm_ops by name
select r.step, r.device_id, (select coalesce(max(op_id), -1) from comm_ops) + row_number() over (order by r.start_ns, r.name) as op_id,
    r.name, comm_op_type(r.name) as op_type, r.start_ns, r.dur_ns
from _comm_rows r
where not exists (
    select 1 from comm_ops o
    where o.name = r.name and coalesce(o.device_id = r.device_id, true) and same_time(o, r)
);

-- name: task_hulls
-- Where only an operation's tasks were recorded, it lasts from the first one's start to the last one's end.
insert into comm_ops by name
select op_id, op_name as name, comm_op_type(op_name) as op_type, any_value(group_hash) as group_hash,
    min(start_ns) as start_ns, max(start_ns + dur_ns) - min(start_ns) as dur_ns
from comm_tasks
where op_name is not null and start_ns is not null and dur_ns is not null
group by op_id, op_name;

-- name: outside_ops
-- Operations that the kernel table puts outside every step: it names steps, but none for them.
create or replace temp table _outside_ops as
select o.op_id
from comm_ops o join _comm_rows r
    on r.name = o.name and coalesce(o.device_id = r.device_id, true) and same_time(o, r)
where o.step is null
    and (select count(step) from _comm_rows) > 0
group by o.op_id having count(r.step) = 0;

-- name: comm_groups
-- A name's group as communication.json tells it, where the timeline does not; else the one known group whose
-- hash ends in the three digits that the name carries (hcom_allReduce__868_0_1); where none does, these digits are
-- all that is known of the hash: '...868'.
create or replace temp table _name_groups as
select name, any_value(group_hash) as group_hash
from comm_times where group_hash is not null
group by name having count(distinct group_hash) = 1;

create or replace temp table _suffix_groups as
select lpad(right(group_hash, 3), 3, '0') as suffix, any_value(group_hash) as group_hash
from (select group_hash from groups union select group_hash from comm_times)
where group_hash is not null
group by 1 having count(distinct group_hash) = 1;

-- name: op_tasks
-- What an operation's tasks tell of it: its stream, and who is at the other end.
create or replace temp table _op_tasks as
select op_id, arg_min(stream_id, (plane_id, start_ns)) as stream_id,
    list_sort(list_distinct(flatten(list([src_group_rank, dst_group_rank]) filter (is_p2p)))) as places
from comm_tasks
join (
    select op_id, op_type in ('send', 'receive', 'batchSendRecv') as is_p2p from comm_ops
    where stream_id is null or is_p2p
) using (op_id)
group by op_id;

-- name: comm_ops
-- Operations are numbered anew by start, so that a text and a DB export of one run agree.
create or replace temp table _op_ids as
select told_id, min(op_id) as op_id
from (
    select op_id as told_id, row_number() over (order by start_ns, name, op_id) - 1 as op_id
    from comm_ops
)
group by told_id;

create or replace table comm_ops as
select o.* replace (
    row_number() over (order by o.start_ns, o.name, o.op_id) - 1 as op_id,
    coalesce(o.group_hash, n.group_hash, s.group_hash, '...' || nullif(regexp_extract(o.name, '__(\d{{3}})_', 1), ''))
        as group_hash,
    coalesce(o.group_size, len(g.global_ranks)::integer) as group_size,
    coalesce(o.stream_id, t.stream_id) as stream_id,
    case when o.op_type in ('send', 'receive', 'batchSendRecv') then coalesce(
        o.peer_ranks,
        nullif([g.global_ranks[place + 1] for place in t.places
            if place is not null and place <> g.group_rank and place < len(g.global_ranks)], []),
        -- In a group of two there is one other.
        case when len(g.global_ranks) = 2 and g.group_rank in (0, 1) then [g.global_ranks[2 - g.group_rank]] end)
    end as peer_ranks
)
from comm_ops o
left join _name_groups n on n.name = o.name
left join _suffix_groups s on s.suffix = regexp_extract(o.name, '__(\d{{3}})_', 1)
left join groups g on g.group_hash = coalesce(o.group_hash, n.group_hash, s.group_hash)
left join _op_tasks t on t.op_id = o.op_id;

-- name: measured_steps
-- HCCL's flat exports tell no steps: an operation's are that of the one operation of its name.
create or replace temp table _named_steps as
select name, group_hash, any_value(step) as step from comm_ops
where name is not null group by all having count(*) = 1 and any_value(step) is not null;

update comm_times set step = s.step from _named_steps s
where comm_times.step is null and s.name = comm_times.name
    and coalesce(s.group_hash = comm_times.group_hash, true);

update comm_links set step = s.step from _named_steps s
where comm_links.step is null and s.name = comm_links.name
    and coalesce(s.group_hash = comm_links.group_hash, true);

update comm_matrix set step = s.step from _named_steps s
where comm_matrix.step is null and s.name = comm_matrix.name
    and coalesce(s.group_hash = comm_matrix.group_hash, true);

-- name: comm_tasks
create or replace table comm_tasks as
select t.* replace (
    i.op_id as op_id,
    coalesce(t.group_hash, o.group_hash) as group_hash,
    coalesce(t.src_rank, g.global_ranks[t.src_group_rank + 1]) as src_rank,
    coalesce(t.dst_rank, g.global_ranks[t.dst_group_rank + 1]) as dst_rank
)
from comm_tasks t
left join _op_ids i on i.told_id = t.op_id
left join comm_ops o on o.op_id = i.op_id
left join groups g on g.group_hash = coalesce(t.group_hash, o.group_hash);

-- name: comm_matrix
create or replace table comm_matrix as
select m.* replace (
    coalesce(m.src_rank, g.global_ranks[m.src_group_rank + 1]) as src_rank,
    coalesce(m.dst_rank, g.global_ranks[m.dst_group_rank + 1]) as dst_rank
)
from comm_matrix m left join groups g on g.group_hash = m.group_hash;
