-- How the producers' text becomes values: exact integers, NULL for every way of saying "unknown".

-- A cell without blanks, TABs and quotes around it; NULL for 'N/A', 'NA', 'None', 'null', 'nan', 'inf', ''.
create macro cell(s) as nullif(case
    when lower(trim(s, e' \t\r\n"')) in ('n/a', 'na', 'none', 'null', 'nan', 'inf', '-inf', 'not known') then null
    else trim(s, e' \t\r\n"') end, '');

-- Decimal text scaled by a power of ten to an integer, rounded half to even; NULL where it is no number.
-- `digits` whole digits are kept after the point: 3 turns microseconds into ns. Integer arithmetic only,
-- because a double keeps 0.25 us at today's epoch. Exponent forms (spreadsheets) go through DECIMAL.
create macro _fraction(t) as split_part(t, '.', 2) || '000';
create macro _rest(t) as rtrim(substr(_fraction(t), 4), '0');
create macro _plain_us_ns(t) as
    case when starts_with(t, '-') then -1 else 1 end * (
        abs(coalesce(try_cast(nullif(nullif(split_part(t, '.', 1), ''), '-') as bigint), 0)) * 1000
        + cast(left(_fraction(t), 3) as bigint)
        + case when _rest(t) = '' or _rest(t) < '5' then 0
               when _rest(t) = '5' then cast(left(_fraction(t), 3) as bigint) % 2
               else 1 end);
create macro us_ns(s) as case
    when cell(s) is null then null
    when regexp_full_match(cell(s), '-?\d{1,16}(\.\d*)?') then _plain_us_ns(cell(s))
    when regexp_full_match(cell(s), '[-+]?\d*\.?\d+[eE][-+]?\d+')
        then cast(round_even(try_cast(cell(s) as double) * 1000, 0) as bigint)
    else null end;

-- Numbers as text.
create macro number(s) as case when isfinite(try_cast(cell(s) as double)) then try_cast(cell(s) as double) end;
create macro whole(s) as try_cast(number(s) as bigint);
-- Ids: the producers write 4294967295 (and 2^64-1) for "none".
create macro some_id(n) as case when n in (4294967295, 65535, 9223372036854775807) or n < 0 then null else n end;
create macro kib_bytes(s) as cast(round(number(s) * 1024) as bigint);
create macro mib_bytes(s) as cast(round(number(s) * 1048576) as bigint);

-- One spelling per collective. `s` is an operation's name or type: hcom_allReduce__868_0_1, hcom_allReduce_,
-- allreduce, Default/AllReduce-op534.
create macro _op_word(s) as lower(case
    when s ilike '%hcom_%' then regexp_extract(s, '(?i)hcom_([a-z]+)', 1)
    else regexp_extract(s, '(?:.*/)?([A-Za-z]+)', 1) end);
create macro comm_op_type(s) as case _op_word(s)
    when 'allreduce' then 'allReduce'
    when 'allgather' then 'allGather'
    when 'allgatherv' then 'allGatherV'
    when 'reducescatter' then 'reduceScatter'
    when 'reducescatterv' then 'reduceScatterV'
    when 'alltoall' then 'allToAll'
    when 'alltoallv' then 'allToAllV'
    when 'alltoallvc' then 'allToAllVC'
    when 'batchsendrecv' then 'batchSendRecv'
    when 'recv' then 'receive'
    when '' then null
    else _op_word(s) end;

-- Kernels that are communication operations in a kernel table: told by their core, or by an HCCL name where
-- the level records no core.
create macro is_comm_row(core, name) as
    coalesce(core in ('HCCL', 'COMMUNICATION'), coalesce(name, '') ilike 'hcom\_%' escape '\');
-- Device tasks that are not computing though they stand beside kernels.
create macro is_compute_row(core, name) as
    not regexp_matches(coalesce(name, ''), '(AicpuKernel|AivKernel)$')
    and not regexp_matches(coalesce(core, ''), '(?i)(event|notify|memcpy|sdma|write_?value|place_?holder|profiling_)');

create macro type_bytes(t) as case upper(t)
    when 'INT8' then 1 when 'UINT8' then 1 when 'HIF8' then 1
    when 'FP8E4M3' then 1 when 'FP8E5M2' then 1 when 'FP8E8M0' then 1
    when 'INT16' then 2 when 'UINT16' then 2 when 'FP16' then 2 when 'BFP16' then 2
    when 'INT32' then 4 when 'UINT32' then 4 when 'FP32' then 4
    when 'INT64' then 8 when 'UINT64' then 8 when 'FP64' then 8
    when 'INT128' then 16 end;
