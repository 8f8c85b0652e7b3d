-- Which ranks does each communication group have, and what is it for?
--
-- By all ranks of a capture together. Members and kind come from the framework's metadata on any of them; a kind also
-- from the communicator's name, identified by its hash; members also from the link matrix. Where none has it,
-- the kind is inferred from what the members do: all-to-all is ep, transfers alone are pp, large reductions late in
-- the step dp, many spread over the step tp; unknown where it is unclear. Groups of one hash with different members are
-- different groups.
--
-- title: Communication groups
-- meaning: Every communication group of a capture: its members, its purpose, and how it was determined.
-- over all ranks of: groups, comm_ops, comm_times, comm_tasks, comm_matrix, steps, ranks
--
--   run           varchar    run of the training job
--   capture       varchar    ranks profiled at the same time
--   group_hash    varchar    HCCL's hash of the communicator's name
--   group_name    varchar    the communicator's name; NULL: unknown
--   group_label   varchar    the framework's label; NULL: none
--   kind          varchar    what it is for: tp, pp, dp, ep, ...; unknown where not recorded
--   basis         varchar    how that is known: metadata, hash, matrix or inferred
--   global_ranks  integer[]  members in group order; NULL: not known to be all
--   group_size    integer    how many members; NULL: unknown
--   seen_ranks    integer[]  members with data in this capture
--   evidence      varchar    what kind and members rest on
with
_here as (select any_value(run) as run, any_value(capture) as capture from ranks)
select run, capture, group_hash, group_name, group_label, kind, basis, global_ranks, group_size, seen_ranks, evidence
from _groups, _here
order by group_hash, seen_ranks
