"""Quirks of the producers' files, and the test that holds us to each.

The list is that of the formats we read (docs/formats.md): a quirk without a test would be read
right by luck. Where a real profile shows it, a golden test stands beside the written one.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

FILES = {file.stem: file for file in Path(__file__).parents[1].rglob("test_*.py")}

# Number -> (what it is, file::test, ...).
QUIRKS: dict[int, tuple[str, ...]] = {
    1: ("a tab behind instants in CSV",
        "test_kernel_details::test_header_variants_give_the_same_row"),
    2: ("instants as text with ns, or as numbers; a double would round them",
        "test_trace_view_variants::test_numbers_as_time_stamps",
        "test_times::test_instants_are_exact_and_round_half_to_even"),
    3: ("ids of flows as text or number, beyond 2^64",
        "test_trace_view::test_launches_bind_both_ends"),
    4: ("one flow starts once and ends several times",
        "test_trace_view::test_launches_bind_both_ends",
        "test_trace_view_goldens::test_real_launch_latencies"),
    5: ("made-up process ids; HCCL or Communication, NPU or NPU n",
        "test_trace_view_variants::test_older_names_of_processes"),
    6: ("tasks of communication stand among the hardware's too",
        "test_trace_view::test_kernels_are_tasks_that_compute",
        "test_trace_view_goldens::test_real_kernels_without_a_kernel_table"),
    7: ("a timeline without its closing bracket",
        "test_json_events::test_closing_bracket_missing_loses_nothing"),
    8: ("placeholders of Level0 are unknown, not 0",
        "test_kernel_details::test_level0_says_nothing_of_type_core_and_blocks",
        "test_ascend_db::test_placeholders_of_level0_are_unknown"),
    9: ("core HCCL became COMMUNICATION, level hccl communication",
        "test_kernel_details::test_header_variants_give_the_same_row",
        "test_metamorphic::test_a_producer_of_another_year_says_the_same"),
    10: ("Block Dim became Block Num; blockDim means two things",
         "test_kernel_details::test_header_variants_give_the_same_row",
         "test_ascend_db_device::test_block_count_variants"),
    11: ("columns that came late: Device_id, OP State, Preparing, Total Active",
         "test_step_trace::test_header_generations",
         "test_memory_reader::test_units_devices_and_exponents",
         "test_metamorphic::test_optional_columns_cost_only_themselves"),
    12: ("shapes in literal quotes, empty segments kept",
         "test_kernel_details::test_header_variants_give_the_same_row"),
    13: ("cells of several lines", "test_mindspore::test_a_stack_is_no_part_of_a_kernels_name"),
    14: ("CRLF and LF in one profile",
         "test_tables_rewritten::test_what_says_the_same_is_read_the_same",
         "test_metamorphic::test_written_otherwise"),
    15: ("memory rows in blocks by component; PTA+GE repeats the others",
         "test_memory_reader::test_real_profiles_match_the_golden_figures",
         "test_memory::test_devices_sources_and_ranks_have_curves_of_their_own"),
    16: ("instants in exponents after a spreadsheet",
         "test_memory_reader::test_units_devices_and_exponents",
         "test_sources_disagree::test_starts_that_a_spreadsheet_rounded_are_no_starts"),
    17: ("blocks never freed, or allocated before the window",
         "test_memory_reader::test_blocks_freed_outside_the_window"),
    18: ("steps as 50, step50, step or nothing", "test_text_macros::test_step_spellings",
         "test_communication_json::test_steps_without_number_and_flat_files_of_msprof"),
    19: ("Bubble counts receives only; what excludes them may be negative",
         "test_step_trace::test_header_generations",
         "test_steps::test_receives_count_as_the_profiler_counts_and_as_time_really_lost"),
    20: ("the step tables of text and DB differ by rule",
         "test_profiler_table::test_reproduces_the_profilers_table",
         "test_compared_steps::test_all_measures_agree_but_for_the_rules"),
    21: ("matrix: reduce for reduceScatter, best and worst beside the total, ranks of the group",
         "test_communication_json::test_matrix_of_2024_and_of_2023",
         "test_communication_goldens::test_real_files_match_the_golden_figures"),
    22: ("SDMA is a sum; packet sizes in exponents; links that lack",
         "test_communication_json::test_an_operation_with_its_links",
         "test_communication_goldens::test_real_packets_sum_to_the_file_s_own_totals"),
    23: ("HCCL's start is rounded, and another instant than the operation's",
         "test_communication_goldens::test_database_and_json_of_a_real_run_give_the_same_rows"),
    24: ("with one step, text keeps operations from outside of it",
         "test_sources_disagree::test_an_operation_that_the_table_puts_outside_every_step_stays_there"),
    25: ("groups by hash, name and label; labels repeat, lists are partial",
         "test_profiler_info::test_real_group_hashes_are_those_of_the_operations",
         "test_profiler_info::test_places_in_groups"),
    26: ("rank_id and export type in two types, schedule keys in two spellings",
         "test_profiler_info::test_single_keys", "test_profiler_info::test_keys_of_2023"),
    27: ("a rank is not its device", "test_ascend_db_facts::test_the_ranks_device"),
    28: ("times of PYTORCH_API are text", "test_ascend_db::test_real_host_ops"),
    29: ("one string under several ids", "test_exports_agree::test_same_rows"),
    30: ("operators reach their launches through CONNECTION_IDS",
         "test_ascend_db_host::test_launches_and_their_operators"),
    31: ("notify ids cut to 63 bits; markers of none",
         "test_ascend_db_device::test_communication_variants"),
    32: ("PMU in ns in the DB, in us in CSV", "test_ascend_db_device::test_pmu_values",
         "test_ascend_db::test_real_pmu"),
    33: ("hit rates of 0..100 or 0..1; frequencies unsorted",
         "test_ascend_db_facts::test_counters_keep_their_values"),
    34: ("foreign tables and columns, empty databases",
         "test_ascend_db_files::test_foreign_tables_beside_empty_ones",
         "test_databases::test_what_others_added_is_passed_over"),
    35: ("META_DATA rows twice", "test_ascend_db_facts::test_groups_and_layout_of_the_job"),
    36: ("several devices in one table or DB", "test_devices_apart::test_databases",
         "test_steps::test_of_several_devices_the_ranks_own_counts"),
    37: ("cluster CSV: tuples, NA, columns that lack; sets without order",
         "test_cluster_outputs::test_rows_are_those_of_the_profiles",
         "test_cluster_outputs::test_the_producers_digits_are_kept"),
    38: ("older cluster JSON: p2p as a key, a matrix of operations",
         "test_cluster_outputs::test_older_forms_lack_names_and_places_only",
         "test_cluster_outputs::test_links_between_global_ranks"),
    39: ("slices, and several exports side by side",
         "test_discover::test_only_the_newest_export_of_several_counts",
         "test_metamorphic::test_tables_in_slices"),
    40: ("several profiles of a rank",
         "test_captures::test_two_profiles_of_a_rank_at_different_times_are_two_captures"),
    41: ("expert loads are cumulative, layer by layer: not read by this version, which is told",
         "test_unread::test_every_kind_is_told"),
    42: ("deployments hold experts twice: not read by this version, which is told",
         "test_unread::test_every_kind_is_told"),
    43: ("no Step Id outside of steps",
         "test_kernels::test_kernels_outside_every_step_stand_under_null"),
    44: ("names of 2023 without the last number",
         "test_cluster_outputs::test_links_between_global_ranks"),
    45: ("operations that move nothing",
         "test_communication_goldens::test_real_files_match_the_golden_figures"),
    46: ("fused kernels compute though they communicate; HCCL's own kernels do not",
         "test_kernel_details::test_implementation_kernels_of_hccl_are_not_computing"),
}  # fmt: skip


@cache
def named_in(file: str) -> frozenset[str]:
    tree = ast.parse(FILES[file].read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


@pytest.mark.parametrize("number", QUIRKS)
def test_each_has_its_test(number: int) -> None:
    _, *told = QUIRKS[number]
    assert told
    for one in told:
        file, _, name = one.partition("::")
        assert name in named_in(file), one


def test_none_is_left_out() -> None:
    assert list(QUIRKS) == list(range(1, 47))
