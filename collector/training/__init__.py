"""What runs inside a training process: nothing beyond the standard library at import.

    profile_session        windows of a run through torch_npu's profiler, each published once
    expert_load_recorder   tokens per expert of MoE routers, without a synchronisation in the step
    sequence_length_recorder   lengths of the sequences of each micro-batch

None of them ever raises into the training loop: what goes wrong disables it, with one warning. The
environment's NPUSCOPE=0 switches all off.
"""

from .expert_load import ExpertLoadRecorder, expert_load_recorder
from .profiling import ProfileSession, profile_session
from .sequence_lengths import SequenceLengthRecorder, sequence_length_recorder

__all__ = [
    "ExpertLoadRecorder",
    "ProfileSession",
    "SequenceLengthRecorder",
    "expert_load_recorder",
    "profile_session",
    "sequence_length_recorder",
]
