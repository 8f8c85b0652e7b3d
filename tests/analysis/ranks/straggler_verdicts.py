"""Whom `stragglers` names in planted jobs, held against whom it should name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from npuscope.analysis.ranks.stragglers.stragglers import stragglers
from tests.analysis.ranks.planted_arrivals import connection
from tests.analysis.ranks.straggler_jobs import Case, Fault, case

CLOCK_ERROR_NS = 3_000


def verdict_pairs(tables: pl.DataFrame) -> set[tuple[int, str]]:
    """Suspects with their verdicts."""
    return set(tables.drop_nulls("verdict").select("rank", "verdict").unique().iter_rows())


def blame(planted: Case) -> pl.DataFrame:
    """Rows of rank_blame of a job whose clocks are aligned as planted, drift left in."""
    with connection(planted.job, clock_error_ns=CLOCK_ERROR_NS) as con:
        return stragglers(con).rank_blame


def expected(planted: Case) -> set[tuple[int, str]]:
    return {(rank, planted.verdict) for rank in planted.ranks}


@dataclass(frozen=True, slots=True)
class Named:
    """How many suspects are the right ones, how many are not, and how many are not named."""

    right: int
    wrong: int
    missed: int

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.wrong)

    @property
    def recall(self) -> float:
        return self.right / (self.right + self.missed)


def judge(fault: Fault, seeds: Iterable[int]) -> Named:
    """All suspects of the jobs of these seeds with that fault."""
    right = wrong = missed = 0
    for seed in seeds:
        planted = case(fault, seed)
        found, true = verdict_pairs(blame(planted)), expected(planted)
        right += len(found & true)
        wrong += len(found - true)
        missed += len(true - found)
    return Named(right, wrong, missed)
