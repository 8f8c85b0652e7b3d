"""Values that somebody may find where a number or a name should be."""

from __future__ import annotations

WHOLE = (
    0, -1, 1, 65535, 2**31 - 1, 2**31, 4294967295, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1,
    10**15, 10**19, 10**30, 1764246877, 1764246877002061290,
)  # fmt: skip
REAL = (0.0, -0.0, 0.5, -1.5, 1e-320, 1e15, 1e18, 9.2e18, 1e19, 1.7e308, -1e300, 0.1 + 0.2)
# Numbers as text, and what only looks like one.
TEXT = (
    "", " ", "0", "-1", "+5", "-0", "007", "1.", ".5", "1.5.5", "1,5", "1e5", "1E+15", "1e999",
    "-1e999", "1.76424E+15", "1764246877002061.290", "1764246877002061.2905", "1764246877002061290",
    "9223372036854775807", "9223372036854775808", "99999999999999999999999999999999999999999",
    "9223372036854775.807", "9300000000000000.5", "-9300000000000000", "NaN", "nan", "inf", "-inf",
    "Infinity", "N/A", "NA", "null", "None", "true", "0x10", "1_0", "\uff11\uff12", "\u0661", "1 2",
    "\t1", "1\t", "'1'", "--1", "1-", "x", "hcom_", "hcom_allReduce__1", "hcom_allReduce_",
    "MatMulAicpuKernel", "HCCL", "COMMUNICATION", "AI_CORE", "ProfilerStep#13", "ProfilerStep#",
    "ProfilerStep#99999999999999999999", "Plane 0", "Stream 7", "NPU 0", "NPU:0", "NPU:99999999999",
    "step13", "step99999999999999999999", "total", "Total Op Info", "a@b", "@", "-", "0-1", "x-y",
    "../../etc/passwd", "'; drop table kernels; --", '"', '""', '"""', "a\nb", "a\r\nb", "a\rb",
    "a\0b", "\ud83d\udca9", "\u4e2d\u6587", "\ufeff", "=1+1", "{}", "[]", "%", "A" * 3000,
)  # fmt: skip
