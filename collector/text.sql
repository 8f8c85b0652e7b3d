-- How the producers' text becomes values: exact integers, NULL for every way of saying "unknown".

-- Macros are expanded as text: each uses its argument at most a few times, or nested calls would grow without
-- bound; `cell` and `us_ns` use it often, so give them columns. Numbers need no `cell` around them: a cast ignores
-- blanks and TABs, and 'N/A' casts to NULL.

-- A cell without blanks, TABs and quotes around it; NULL for 'N/A', 'NA', 'None', 'null', 'nan', 'inf', ''.
-- `trim` decodes every character, so only texts go there that have something to trim. '#' follows blanks,
-- TABs, line ends, '!' and the quote. Of a few rows, `plain_cell` takes less time to plan than `cell` saves.
create macro _trimmed(s) as trim(s, e' \t\r\n"');
-- Not `in`, which the planner makes a join for every column that asks.
create macro _says_unknown(s) as
    coalesce(list_position(['', 'n/a', 'na', 'none', 'null', 'nan', 'inf', '-inf', 'not known'], lower(s)), 0) > 0;
create macro plain_cell(s) as case when not _says_unknown(_trimmed(s)) then _trimmed(s) end;
create macro cell(s) as case
    when s >= '#' and s[-1] >= '#' then case when length(s) > 9 or not _says_unknown(s) then s end
    when s between '"0' and '":' and s[-1] = '"' and s[-2] >= '#' then substr(s, 2, length(s) - 2)
    else plain_cell(s) end;

-- Decimal microseconds as integer ns, rounded half to even; NULL where the text is no number. Decimal arithmetic
-- only, because a double keeps 0.25 us at today's epoch. Exponent forms (spreadsheets) are numbers too.
create macro _half_even(d) as
    try_cast(d as bigint) - case when abs(d % 1) = 0.5 then try_cast(d as bigint) % 2 else 0 end;
create macro _decimal_ns(s) as _half_even(try_cast(s as decimal(30, 12)) * 1000);
-- Split at the dot: casts to decimals of more than 18 digits cost 10 us a value in DuckDB 1.
create macro us_ns(s) as case
    when s between '0' and ':' and strpos(s, '.') > 0 and not contains(s, 'e') and not contains(s, 'E') then
        try_cast(try_cast(left(s, strpos(s, '.')) as bigint)::hugeint * 1000
            + round_even(try_cast('0' || substr(s, strpos(s, '.')) as decimal(13, 12)) * 1000, 0)::bigint as bigint)
    else _decimal_ns(s) end;
-- Instants beyond 146 years are damage: NULL, for two of them may not fit 64 bits together.
create macro near_ns(n) as case when n between -4611686018427387903 and 4611686018427387903 then n end;
-- Whether an instant in exponent form lacks the digits that tell its microsecond: 1.73641E+15 covers hours.
create macro is_rounded_us(s) as case when contains(s, 'e') or contains(s, 'E') then
    length(replace(regexp_extract(s, '([0-9.]+)[eE]', 1), '.', '')) <= try_cast(regexp_extract(s, '[eE]\+?(-?\d+)', 1) as integer)
    else false end;

-- Numbers as text.
create macro number(s) as case when isfinite(try_cast(s as double)) then try_cast(s as double) end;
create macro finite(d) as case when isfinite(d) then d end;   -- factors make large doubles infinite
create macro whole(s) as try_cast(s as bigint);
-- A decimal scaled by a power of ten with all its digits: micro- or milliseconds to ns.
create macro scaled(s, factor) as
    coalesce(try_cast(try_cast(s as decimal(30, 12)) * factor as double), finite(try_cast(s as double) * factor));
-- A step as the producers write it: '13', 'step13', '13.0' beside rows without one; NULL for 'step' and ''.
create macro step_number(s) as
    try_cast(regexp_extract(s, '^[ \t\r\n"]*(?i:step)?(\d+)(?:\.0*)?[ \t\r\n"]*$', 1) as bigint);
-- Ids: the producers write 4294967295 (and 2^64-1) for "none".
create macro some_id(n) as case when n in (4294967295, 65535, 9223372036854775807) or n < 0 then null else n end;
create macro kib_bytes(s) as try_cast(round(number(s) * 1024) as bigint);
create macro mib_bytes(s) as try_cast(round(number(s) * 1048576) as bigint);

-- One spelling per collective. `s` is an operation's name or type: hcom_allReduce__868_0_1, hcom_allReduce_,
-- allreduce, Default/AllReduce-op534.
create macro _op_word(s) as lower(case
    when s ilike '%hcom_%' then regexp_extract(s, '(?i)hcom_([a-z]+)', 1)
    else regexp_extract(s, '(?:.*/)?([A-Za-z]+)', 1) end);
-- A map, as a CASE would repeat the word for each of its branches.
create macro comm_op_type(s) as list_transform([_op_word(s)], lambda word: coalesce(map {
    'allreduce': 'allReduce',
    'allgather': 'allGather',
    'allgatherv': 'allGatherV',
    'reducescatter': 'reduceScatter',
    'reducescatterv': 'reduceScatterV',
    'alltoall': 'allToAll',
    'alltoallv': 'allToAllV',
    'alltoallvc': 'allToAllVC',
    'batchsendrecv': 'batchSendRecv',
    'recv': 'receive'}[word], nullif(word, '')))[1];

-- Kernels that are communication operations in a kernel table: told by their core, or by an HCCL name where
-- the level records no core.
create macro is_comm_row(core, name) as
    coalesce(core in ('HCCL', 'COMMUNICATION'), coalesce(name, '') ilike 'hcom\_%' escape '\');
-- The core of a kernel by the type of its task.
create macro task_core(t) as case regexp_replace(t, '^KERNEL_', '')
    when 'AICORE' then 'AI_CORE' when 'AIVEC' then 'AI_VECTOR_CORE' when 'AIV_SQE' then 'AI_VECTOR_CORE'
    when 'AICPU' then 'AI_CPU' else regexp_replace(t, '^KERNEL_', '') end;
-- Device tasks that are not computing though they stand beside kernels.
create macro is_compute_row(core, name) as
    not (ends_with(coalesce(name, ''), 'AicpuKernel') or ends_with(coalesce(name, ''), 'AivKernel'))
    and not regexp_matches(coalesce(core, ''), '(?i)(event|notify|memcpy|sdma|write_?value|place_?holder|profiling_|hccl)');

-- Whether an operation of the timeline and a communication row of that name in the kernel table are one: the
-- files differ by 1 ns, old ones by as much as they rounded, but the middle of the one lies in the other.
create macro same_time(o, r) as abs(o.start_ns - r.start_ns) <= 2
    or r.start_ns + r.dur_ns // 2 between o.start_ns and o.start_ns + o.dur_ns;

create macro type_bytes(t) as [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8, 16][list_position([
    'INT8', 'UINT8', 'HIF8', 'FP8E4M3', 'FP8E5M2', 'FP8E8M0', 'INT16', 'UINT16', 'FP16', 'BFP16',
    'INT32', 'UINT32', 'FP32', 'INT64', 'UINT64', 'FP64', 'INT128'], upper(t))];
