-- Who belongs to each communication group, as far as lists of members tell?
--
-- A row per group: a hash, and a list of members where one is known. The same hash with other members is another
-- group (names count up in each process). A rank whose own list does not have the hash belongs to the one group of
-- that hash that lists it; where no list does, to the group of that hash without members. Needs `_named` (group_name,
-- group_hash, kind): the hash of each name, and the kind that the name itself says.
with
_facts as (
    select rank, coalesce(g.group_hash, n.group_hash) as group_hash, g.group_name,
        nullif(group_label, '') as group_label,
        nullif(g.parallel_kind, 'unknown') as parallel_kind,
        n.kind as named_kind,
        case when len(global_ranks) > 0 then global_ranks end as global_ranks,
        case when len(global_ranks) > 0 then list_sort(list_distinct(global_ranks)) end as members
    from groups g left join _named n using (group_name)
),
_lists as (
    select group_hash, members,
        min(global_ranks) as global_ranks,
        min(group_name) as group_name,
        min(group_label) as group_label,
        mode(parallel_kind order by parallel_kind) as told_kind,
        count(distinct parallel_kind) as kind_count,
        min(named_kind) as named_kind,
        count(*) as told_count
    from _facts where group_hash is not null
    group by group_hash, members
),
_sightings as (
    select rank, group_hash from comm_ops where group_hash is not null
    union
    select rank, group_hash from comm_times where group_hash is not null
    union
    select rank, group_hash from _facts where group_hash is not null
),
_own as (
    select rank, group_hash, min(members) as members from _facts where members is not null group by rank, group_hash
),
_listed_by_others as (
    select _sightings.rank, _sightings.group_hash, min(_lists.members) as members
    from _sightings join _lists using (group_hash)
    where list_contains(_lists.members, _sightings.rank)
    group by all
    having count(*) = 1
),
_places as (
    select _sightings.rank, _sightings.group_hash, coalesce(_own.members, _listed_by_others.members) as members
    from _sightings
    left join _own using (rank, group_hash)
    left join _listed_by_others using (rank, group_hash)
),
_groups as (
    select group_hash, members, list(rank order by rank) as seen_ranks
    from _places group by group_hash, members
),
-- Names and labels where no list of members has them.
_unlisted as (
    select group_hash, min(group_name) as group_name, min(group_label) as group_label,
        mode(told_kind order by told_kind) as told_kind, min(named_kind) as named_kind
    from _lists group by group_hash
)
select cast(row_number() over (order by g.group_hash, g.members nulls last) as integer) as group_key,
    g.group_hash,
    coalesce(l.group_name, u.group_name) as group_name,
    coalesce(l.group_label, case when g.members is null then u.group_label end) as group_label,
    coalesce(l.told_kind, case when g.members is null then u.told_kind end) as told_kind,
    coalesce(l.kind_count, 0) as kind_count,
    coalesce(l.named_kind, u.named_kind) as named_kind,
    l.global_ranks,
    g.seen_ranks,
    coalesce(l.told_count, 0) as told_count
from _groups g
left join _lists l on l.group_hash = g.group_hash and l.members is not distinct from g.members
left join _unlisted u on u.group_hash = g.group_hash
