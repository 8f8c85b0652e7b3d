"""What a capture can answer: each analysis, what it needs of a rank, and what would record it.

    analysis            needs                          else
    waiting and moving  HCCL's times or typed tasks    Level1

A need counts rows of the metric `contents`. Nothing here opens a table or a file.
"""

from __future__ import annotations

from dataclasses import dataclass

from .profiler_options import (
    CPU,
    INTERCONNECT,
    IO,
    LEVEL1,
    MEMORY,
    METADATA,
    NPU,
    PMU,
    STACKS,
    STEPS,
    Setting,
)

# Which files hold a thing, as people name them.
TIMELINE = "trace_view.json or DB"
KERNEL_TABLE = "kernel_details.csv or DB"
COMMUNICATION = "communication.json or analysis.db"


@dataclass(frozen=True, slots=True)
class Need:
    """Something an analysis needs of a rank: any of `contents` must count more than 0.

    `missing` says what lacks otherwise, `settings` what would record it, `file` where it stands,
    `advice` what else helps, `gpu_advice` on a GPU. Where it lacks, the answer is no; but partly
    where it is not `essential`, or where one of `instead` is there (then `only` says what
    that gives). Of `of` it must have the share `least`, else the answer is partly. `ingest` names
    an option of ours that keeps it. `tells_peak`: it is for the peak of the chip,
    which decides where it was looked for.
    """

    contents: tuple[str, ...]
    missing: str
    settings: tuple[Setting, ...] = ()
    file: str = ""
    advice: str = ""
    gpu_advice: str = ""
    essential: bool = True
    instead: tuple[str, ...] = ()
    only: str = ""
    of: str = ""
    least: float = 1.0
    ingest: str = ""
    tells_peak: bool = False

    @property
    def tables(self) -> frozenset[str]:
        """Canonical tables it counts in."""
        counted = {content.partition(".")[0] for content in self.contents}
        return frozenset(counted - {"largest_group"})


@dataclass(frozen=True, slots=True)
class Capability:
    """An analysis: `question` is what it answers. `of_many`: it needs several ranks."""

    name: str
    question: str
    needs: tuple[Need, ...]
    talks: bool = False  # about communication, which a job of one rank has none of


_COMPUTE = Need(
    ("kernels.compute",), "no compute kernel was recorded", (NPU,), KERNEL_TABLE,
    advice="run analyse() on the whole folder",
)  # fmt: skip
_OPERATIONS = Need(
    ("comm_ops.timed",), "no communication operation was recorded with its time", (NPU,), TIMELINE
)
_TABLE_ONLY = "only the profiler's own table of steps is here"

CAPABILITIES: tuple[Capability, ...] = (
    Capability(
        "steps", "where the time of each step goes",
        (
            Need(
                _COMPUTE.contents, _COMPUTE.missing, _COMPUTE.settings, KERNEL_TABLE,
                _COMPUTE.advice, instead=("profiler_steps",), only=_TABLE_ONLY,
            ),
            Need(("steps", "kernels.stepped", "profiler_steps"), "no step is marked: the whole"
            " capture counts as one step",
                 (STEPS,), TIMELINE, essential=False),
            Need(("steps.windowed",),
                 "no range of steps on the host: preparing time is the profiler's own figure, if"
                 " any",
                 (STEPS, CPU), TIMELINE, essential=False),
        ),
    ),
    Capability(
        "kernels", "kernels by name, type and shape",
        (
            _COMPUTE,
            Need(("kernels.typed",), "kernels have names, but no types", (LEVEL1,), KERNEL_TABLE,
                 essential=False, of="kernels.compute"),
            Need(("kernels.shaped",), "kernels have no shapes", (LEVEL1,), KERNEL_TABLE,
                 essential=False, of="kernels.cores", least=0.5),
        ),
    ),
    Capability(
        "pmu", "what kernels did inside the cores (PMU counters)",
        (
            Need(("kernels.timed",), "no PMU counters", (LEVEL1, PMU), KERNEL_TABLE,
                 of="kernels.cores"),
            Need(("kernels.pmu",), "core times, but no further counters", (LEVEL1, PMU),
                 KERNEL_TABLE, essential=False),
        ),
    ),
    Capability(
        "masking", "how well computing hides communication",
        (
            Need(_OPERATIONS.contents, _OPERATIONS.missing, (NPU,), TIMELINE,
                 instead=("profiler_steps",), only=_TABLE_ONLY),
            Need(_COMPUTE.contents, _COMPUTE.missing, (NPU,), KERNEL_TABLE, _COMPUTE.advice,
                 instead=("profiler_steps",), only=_TABLE_ONLY),
        ),
        talks=True,
    ),
    Capability(
        "groups", "which parallel group (TP, PP, DP, EP, CP) communicates",
        (
            Need(("comm_ops", "comm_times"), "no communication operation was recorded", (NPU,),
                 TIMELINE),
            Need(("comm_ops.grouped", "comm_times"), "operations are recorded without their"
            " group",
                 (LEVEL1,), COMMUNICATION),
            Need(("groups.known",), "the purpose of communication groups is not recorded:"
                 " inferred from what they do", (METADATA,),
                 advice="a torch_npu of 2025-02 or later names groups by itself", essential=False,
                 gpu_advice="torch.distributed.new_group(..., group_desc=NAME), as Megatron and"
                 " DeviceMesh do"),
        ),
        talks=True,
    ),
    Capability(
        "waiting", "waiting and moving data inside communication",
        (
            Need(("comm_times",), "waiting and transfer cannot be"
            " separated",
                 (LEVEL1,), COMMUNICATION),
        ),
        talks=True,
    ),
    Capability(
        "links", "bandwidth of each kind of link",
        (
            Need(("comm_links", "comm_tasks.moved"), "no traffic of links", (LEVEL1,),
                 COMMUNICATION),
        ),
        talks=True,
    ),
    Capability(
        "matrix", "which pairs of ranks exchange how much, how fast",
        (
            Need(("comm_matrix",), "no link matrix", (LEVEL1,),
                 "communication_matrix.json or analysis.db"),
            Need(("comm_matrix.global",), "members of groups are unknown: only places in a group",
                 (METADATA,), advice="a torch_npu of 2025-02 or later names members by itself",
                 essential=False),
        ),
        talks=True,
    ),
    Capability(
        "peers", "on which stream communication runs, and who is at its other end",
        (
            Need(("comm_ops",), "no communication operation was recorded", (NPU,), TIMELINE),
            Need(("comm_ops.streamed",), "operations are recorded without their stream: those of a"
                 " group count as one after another", (NPU,), TIMELINE, essential=False,
                 of="comm_ops"),
            Need(("comm_ops.peered",), "operations between two ranks are recorded without the"
                 " other one", (LEVEL1,), TIMELINE, essential=False, of="comm_ops"),
        ),
        talks=True,
    ),
    Capability(
        "host", "what the host did: operators and CANN calls",
        (
            Need(("host_ops",), "no host activity was recorded", (CPU,), TIMELINE),
            Need(("host_ops.operator",), "no operators of the framework", (CPU,), TIMELINE,
                 essential=False),
            Need(("host_ops.api",), "no calls of CANN", (LEVEL1,), TIMELINE, essential=False),
        ),
    ),
    Capability(
        "dispatch", "who launched each task, and how long it took to start",
        (
            Need(("launches",), "no launch was recorded", (CPU, LEVEL1), TIMELINE),
            Need(("launches.operators",), "launches are recorded without their operator", (CPU,),
                 TIMELINE, essential=False),
        ),
    ),
    Capability(
        "replay", "what waits for what: replay, critical path, what-ifs",
        (
            _COMPUTE,
            Need(("device_tasks.events",), "no waits of streams for each other: inferred from"
                 " times and order", (NPU,), TIMELINE, essential=False),
            Need(("launches",), "no launch was recorded: changes of the host are refused",
                 (CPU, LEVEL1), TIMELINE, essential=False),
            Need(("host_ops.api",), "no calls of CANN: when the host waits for the device is"
                 " inferred from its pauses", (LEVEL1,), TIMELINE, essential=False),
        ),
    ),
    Capability(
        "stacks", "which line of Python launched what",
        (
            Need(("host_ops.stacked",), "no call stacks", (CPU, STACKS), TIMELINE,
                 instead=("host_ops.python",),
                 only="frames of Python, but no stacks of operators", ingest="--stacks"),
        ),
    ),
    Capability(
        "memory", "device memory over time",
        (
            Need(("memory.curve",), "no memory curve", (MEMORY,), "memory_record.csv or DB",
                 instead=("memory.modules",), only="only memory of CANN's modules"),
        ),
    ),
    Capability(
        "operator_memory", "which operator held which memory",
        (
            Need(("operator_memory",), "no blocks of memory", (MEMORY,),
                 "operator_memory.csv or DB"),
        ),
    ),
    Capability(
        "mfu", "FLOPs and MFU from the shapes of kernels",
        (
            _COMPUTE,
            Need(("kernels.cubes_shaped",), "no shapes of kernels on cube cores", (LEVEL1,),
                 KERNEL_TABLE, of="kernels.cubes"),
            Need(("kernels.cycled",), "no cycles measured: the peak has to be given",
                 (LEVEL1, PMU), KERNEL_TABLE, essential=False, tells_peak=True),
        ),
    ),
    Capability(
        "experts", "load of each expert",
        (
            Need(("expert_load",), "a profile does not count tokens per expert",
                 advice=(
                     "record it with the training hook or the inference server, then `ingest"
                     " --expert-load DIR`"
                 )),
        ),
    ),
    Capability(
        "frequency", "frequency of the cores, and power",
        (
            Need(("counters.frequency",), "no frequency of the cores", (NPU,), TIMELINE),
            Need(("counters.power",), "no power", essential=False,
                 advice="torch_npu has no option for power: monitor it during the job (npu-smi)"),
        ),
    ),
    Capability(
        "bandwidth", "bandwidth of HBM and links over time",
        (
            Need(("counters.memory", "counters.links"), "no counters of memory or links",
                 (INTERCONNECT, IO), TIMELINE),
            Need(("counters.links",), "no counters of links", (INTERCONNECT, IO), TIMELINE,
                 essential=False),
        ),
    ),
)  # fmt: skip
RANKS = Capability("ranks", "ranks compared with each other", ())
