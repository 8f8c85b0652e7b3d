"""What the framework's operators are called on GPUs, on NPUs and by CANN, and which are the same.

aten::_fused_adamw_, npu::npu_apply_adam_w, aclnnApplyAdamWV2  ->  adamw
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources

# Words of names in capitals begin here: Conv2DBackpropFilter, MaxPool2dWithMask.
_BORDER = re.compile(
    r"(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[0-9][dD])(?=[A-Z])"
)
_LIBRARY = re.compile(r"^(aclnn_?|npu_)(?=.)")
_IN_PLACE = re.compile(r"^inplace_(?=.)")
# Versions of one operator, and the numbers of autograd's nodes.
_VERSION = re.compile(r"_?v[0-9]+$|(?<=backward)[0-9]+$")


@cache
def same_work(operator: str) -> str:
    """One name for all operators that do the same work.

    Without its library (`aten::`, `npu::`, `npu_`, `aclnn`), overload, version and marks for in
    place, in lower case with underscores; what has other names still is in operator_names.json.
    """
    plain = operator.rpartition("::")[2].partition(".")[0]
    words = _BORDER.sub("_", plain).lower().strip("_")
    name = _VERSION.sub("", _IN_PLACE.sub("", _LIBRARY.sub("", words).strip("_")))
    return _same().get(name, name) or operator


@cache
def _same() -> dict[str, str]:
    text = resources.files(__package__).joinpath("operator_names.json").read_text("utf-8")
    spellings: dict[str, list[str]] = json.loads(text)
    return {other: name for name, others in spellings.items() for other in others}
