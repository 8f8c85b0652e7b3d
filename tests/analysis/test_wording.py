"""Figures as sentences and tables write them."""

from __future__ import annotations

import pytest

from npuscope.analysis.wording import ms, percent, us
from npuscope.dashboard.terminal.tables import decimals


@pytest.mark.parametrize(
    "told, shown",
    [
        (ms(-499), "0.000"), (ms(-500_000), "-0.500"), (ms(499), "0.000"), (ms(None), "-"),
        (us(-4), "0.0"), (percent(-0.0001), "0.0 %"), (percent(-0.25), "-25.0 %"),
        (decimals("{:+.2%}")(-1e-6), "0.00%"), (decimals("{:+.2%}")(0.5), "+50.00%"),
    ],
)  # fmt: skip
def test_what_rounds_to_nothing_has_no_sign(told: str, shown: str) -> None:
    assert told == shown
