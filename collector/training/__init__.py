"""What runs inside a training process: nothing beyond the standard library at import.

    profile_session        windows of a run through torch_npu's profiler, each published once
    expert_load_recorder   tokens per expert of MoE routers, without a synchronisation in the step

Neither ever raises into the training loop: what goes wrong disables it, with one warning. The
environment's NPUSCOPE=0 switches both off.
"""

from .expert_load import ExpertLoadRecorder, expert_load_recorder
from .profiling import ProfileSession, profile_session

__all__ = ["ExpertLoadRecorder", "ProfileSession", "expert_load_recorder", "profile_session"]
