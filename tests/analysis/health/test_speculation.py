"""Speculative heads: bounds from losses against drafts that are drawn, engines' own counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuscope.analysis.health.speculation import (
    health_heads,
    health_speculation,
    least_acceptance,
)
from npuscope.collector.readers.train_log.serving_text import read_serving
from npuscope.collector.readers.train_log.train_log import read_lines


@pytest.mark.parametrize("seed", range(3))
def test_no_draft_is_accepted_less_often_than_its_loss_allows(seed: int) -> None:
    chance = np.random.default_rng(seed)
    for spread in (0.05, 0.3, 1.0, 3.0):
        logits = 2 * chance.standard_normal((300, 50))
        drafts = logits + spread * chance.standard_normal(logits.shape)
        p, q = (np.exp(one) / np.exp(one).sum(1, keepdims=True) for one in (logits, drafts))
        divergence = float((p * np.log(p / q)).sum(1).mean())  # loss of the head over the model's
        accepted = float(np.minimum(p, q).sum(1).mean())
        assert least_acceptance(divergence) <= accepted
        assert least_acceptance(divergence) > accepted - 0.35
    assert least_acceptance(-0.1) == 1.0


def test_heads_from_a_training_log(tmp_path: Path) -> None:
    line = (
        "iteration {0}/ 500 | lm loss: 2.000000E+00 | mtp_1 loss: 2.020000E+00 |"
        " mtp_2 loss: 2.180000E+00 | grad norm: 1.0 |\n"
    )
    log = tmp_path / "train.log"
    log.write_text("".join(line.format(step) for step in range(1, 4)))
    first, second = health_heads(read_lines(log)[0]).to_dicts()
    assert first["acceptance_share"] == pytest.approx(0.9)  # 1 - sqrt(0.02 / 2)
    assert second["acceptance_share"] == pytest.approx(0.7)
    assert (first["accepted_length"], second["accepted_length"]) == pytest.approx((1.9, 2.53))
    log.write_text("iteration 1/ 5 | lm loss: 2.0 |\n")
    assert health_heads(read_lines(log)[0]).is_empty()


@pytest.mark.parametrize("prefix", ["vllm:", "mindie:", "vllm_"])
def test_counters_of_an_engine(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(
        "# HELP x drafts\n"
        f'{prefix}spec_decode_num_drafts_total{{engine="0",model_name="pangu"}} 600.0\n'
        f'{prefix}spec_decode_num_drafts_total{{engine="1",model_name="pangu"}} 400.0\n'
        f'{prefix}spec_decode_num_draft_tokens_total{{engine="0"}} 2000.0\n'
        f'{prefix}spec_decode_num_accepted_tokens_total{{engine="0"}} 1.2e+03\n'
        f'{prefix}spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} 800.0\n'
        f'{prefix}spec_decode_num_accepted_tokens_per_pos_total{{position="1"}} 400.0\n'
        f'{prefix}avg_generation_throughput_toks_per_s{{engine="0"}} 2200.0\n'
        f"{prefix}num_requests_running 3.0\n"
    )
    every, first, second = health_speculation(read_serving(path)).to_dicts()
    assert every["engine"] == prefix[:-1]
    assert (every["acceptance_share"], every["accepted_length"]) == (0.6, 2.2)
    assert every["worth_tokens_per_s"] == pytest.approx(1200)  # 1,000 tokens/s without
    assert (first["acceptance_share"], second["acceptance_share"]) == (0.8, 0.5)
    assert (first["accepted_length"], second["accepted_length"]) == pytest.approx((1.8, 2.2))
    (dear, *_) = health_speculation(read_serving(path), draft_cost=0.1).to_dicts()
    assert dear["worth_tokens_per_s"] == pytest.approx(1100)


def test_gauges_and_logs(tmp_path: Path) -> None:
    path = tmp_path / "any.txt"
    path.write_text(
        'sglang:spec_accept_length{tp_rank="0"} 2.5\nsglang:gen_throughput{tp_rank="0"} 1000\n'
        'sglang:gen_throughput{tp_rank="1"} 0\nother:accept_length nonsense\n'
    )
    (row,) = health_speculation(read_serving(path)).to_dicts()
    assert (row["engine"], row["accepted_length"]) == ("sglang", 2.5)
    assert row["worth_tokens_per_s"] == pytest.approx(600)
    path.write_text(
        "INFO [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.00, Accepted"
        " throughput: 10.0 tokens/s, Drafted throughput: 20.0 tokens/s, Accepted: 100 tokens,"
        " Drafted: 200 tokens, Per-position acceptance rate: 0.800, 0.200, Avg Draft acceptance"
        " rate: 50.0%\n"
        "INFO SpecDecoding metrics: Mean acceptance length: 1.50, Accepted: 75 tokens, Drafted:"
        " 300 tokens, Per-position acceptance rate: 0.400, 0.100, Avg Draft acceptance rate: 25%\n"
        "INFO Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 340.0 tokens/s\n"
        "Decode batch. #running-req: 1, #token: 9, accept len: 3.00, accept rate: 0.75, cuda graph:"
        " True, gen throughput (token/s): 300.00, #queue-req: 0\n"
        "Decode batch. #running-req: 1, accept len: 1.00, gen throughput (token/s): 100.00,\n"
    )
    rows = health_speculation(read_serving(path)).to_dicts()
    assert [(row["engine"], row["head"]) for row in rows] == [
        ("vllm", None), ("vllm", 1), ("vllm", 2), ("sglang", None),
    ]  # fmt: skip
    assert rows[0]["accepted_length"] == pytest.approx(1.7)
    assert rows[0]["acceptance_share"] == pytest.approx(175 / 500)
    assert rows[1]["acceptance_share"] == pytest.approx(0.56)
    assert (rows[3]["accepted_length"], rows[3]["tokens_per_second"]) == (2.0, 200.0)
    path.write_text("nothing of it\n")
    assert read_serving(path) == []
