"""Orders of passes as text: read, written, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuscope.analysis.pipeline.execution import even_durations, execute
from npuscope.analysis.pipeline.orders.order_file import parse_order, read_order
from npuscope.analysis.pipeline.schedules import SCHEDULES, schedule
from npuscope.errors import TraceFormatError, TraceNotFound, UsageError
from tests.analysis.pipeline.pipeline_frames import order_text

TEXT = """
# two stages
0: F0 F1 BW0 F2 BW1 BW2   # warm-up of one
1: F0 BW0 F1 BW1 F2 BW2
"""


def test_a_small_file_is_1f1b() -> None:
    found = parse_order(TEXT, "order.txt", "mine")
    expected = schedule("1f1b", 2, 3)
    assert (found.name, found.orders, found.routes) == ("mine", expected.orders, expected.routes)


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    chosen = schedule(name, 4, 8)
    (tmp_path / f"{name}.txt").write_text(order_text(chosen))
    found = read_order(tmp_path / f"{name}.txt")
    assert found == chosen
    times = even_durations(found, 6, 4, 2)
    assert execute(found, times) == execute(chosen, times)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0: F0 BW0\n1: F0 X0", "line 2: 'X0' is no pass"),
        ("0: F0 BW0\nhello", "line 2: 'hello' is neither"),
        ("0: F0 BW0\n0: F0 BW0", "line 2: device 0 has an order already, in line 1"),
        ("# nothing", "no device has an order"),
        ("1: F0 BW0", "device 0 has no order"),
        ("0: F0 BW0 F1", "line 1: micro-batch 1 never goes backward through chunk 0"),
        ("0: F0 B0", "line 1: micro-batch 0 never goes backward for the weights"),
        ("0: F0 BW0\n1: F0 BW0 F1 BW1", "line 1: micro-batch 1 never goes forward"),
        ("0: F0 BW0 BW0", "line 1: micro-batch 0 goes backward through chunk 0 twice"),
        ("path 0 0\n0: F0 BW0", "place 0.0 is on the path twice"),
        ("path 0 x\n0: F0 BW0", "line 1: 'x' is no place"),
        ("path 0\n0: F0.1 BW0.1", "line 2: no path goes over place 0.1"),
        ("path 0 1\n0: F0 BW0", "device 1 is on the path and has no order"),
        ("0: F0+F1+F2", "line 1: 'F0\\+F1\\+F2': two passes at most"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_order(text, "order.txt", "mine")


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFound, match="cannot be read: No such file"):
        read_order(tmp_path / "none.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceFormatError, match="no text in UTF-8"):
        read_order(tmp_path / "binary")
