"""Why is the device free, and does the host keep up?"""

import duckdb
import polars as pl
import streamlit as st

from npuscope.analysis import query
from npuscope.analysis.host import free_time
from npuscope.analysis.host.blocking import host_calls
from npuscope.analysis.host.gains import gain_notes, host_gains
from npuscope.analysis.scope import RANK, Scope
from npuscope.analysis.views import select
from npuscope.dashboard.app.collecting import how_to_collect
from npuscope.dashboard.app.finding_cards import verdict_here
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.figures import host as figures
from npuscope.dashboard.locale.language import label_of
from npuscope.dashboard.terminal.host_tables import BASIS_WORDS, GAIN_WORDS, STAGE_WORDS
from npuscope.messages import Message

STAGE = ("cause", "stage", "free_ns", "share_ratio", "step_share_ratio", "count", "longest_ns")
GAIN = (
    "cause", "operator", "gain_ns", "gain_low_ns", "gain_high_ns", "step_share_ratio", "free_ns",
    "basis", "change",
)  # fmt: skip
EPISODES = 100
EPISODE = (
    "rank", "step", "cause", "stage", "operator", "start_ns", "free_ns", "count", "longest_ns",
)  # fmt: skip
OPERATOR = ("cause", "stage", "operator", "free_ns", "share_ratio", "count", "longest_ns")

page = open_page("host")
say = page.say
# Of a launch, not of the pipeline.
TITLES = {"stage": label_of("stage of a launch", "stage", say)}


def in_words(rows: pl.DataFrame) -> pl.DataFrame:
    """Causes and stages in the reader's language."""
    return rows.with_columns(
        pl.col("cause").replace({key: say(words) for key, words in free_time.CAUSE_WORDS.items()}),
        pl.col("stage").replace({key: say(words) for key, words in STAGE_WORDS.items()}),
    )


def name_causes(rows: pl.DataFrame) -> pl.DataFrame:
    """Causes in the reader's language."""
    words = {key: say(words) for key, words in GAIN_WORDS.items()}
    return rows.with_columns(pl.col("cause").replace(words))


def host_placement(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    """Rows of the metric, which knows no steps."""
    return select(con, "host_placement", scope, of=RANK)


page.title("Why is the device free, and does the host keep up?")
ranks = page.frame(free_time.mean_free_time, by="rank")
stages = page.frame(free_time.mean_free_time, by="stage")
if stages.is_empty():
    page.empty("No free time is known here.", how_to_collect(page, "steps"))
    page.notes([*page.frame(query.notes, rank=None, step=None), *page.warnings])
    st.stop()
slot = page.slot()
page.figure(figures.free_figure(ranks, say), key="free_time")
page.text(
    "Mean of the ranks and steps chosen; causes add up to the free time. Where the host was waiting"
    " for the device when that fell free, all of the gap counts as the wait's."
)
page.table(in_words(stages), name="mean_free_time", columns=STAGE, titles=TITLES)
page.table(
    in_words(page.frame(free_time.mean_free_time, by="operator")),
    name="free_time_by_operator", title="By operator", columns=OPERATOR,
    titles=TITLES,
)  # fmt: skip
page.table(
    in_words(page.frame(free_time.free_time)), name="free_time", title="Every rank and step",
    titles=TITLES,
)  # fmt: skip

gain, waits, ahead = page.parts(
    "What does a step gain without a cause?",
    "When did the device wait for the host?",
    "Does the host keep up?",
)
with gain:
    gains = page.later(host_gains, rank=None, step=None)
    if gains is not None and gains.is_empty():
        page.empty("What a step would gain is unknown here.", how_to_collect(page, "dispatch"))
    elif gains is not None:
        page.text(
            "The mean step of the job, replayed without each cause; of what has nothing to be"
            " alike, with a fifth less. What a wait for the device costs is told beyond the other"
            " causes: a host that never waits would hide those, too."
        )
        page.table(
            name_causes(gains).with_columns(
                pl.col("basis").replace({key: say(words) for key, words in BASIS_WORDS.items()})
            ),
            name="host_gains", title="Gain without each cause", columns=GAIN, is_open=True,
        )  # fmt: skip
        page.notes(gain_notes(gains))
    calls = page.frame(host_calls)
    if not calls.is_empty():
        page.table(
            name_causes(calls), name="host_calls", title="Calls that keep the host from launching"
        )
    places = page.frame(host_placement, step=None)
    if not places.is_empty():
        page.heading("Are threads on cores near their device?")
        page.table(
            places, name="host_placement", title="Threads and their nodes", is_open=True,
            titles={
                "slow_ratio": say("time / usual"), "slow_low_ratio": say("time / usual, from"),
                "slow_high_ratio": say("time / usual, to"),
            },
        )  # fmt: skip

with waits:
    episodes = page.frame(free_time.host_episodes, top=EPISODES)
    if episodes.is_empty():
        page.empty("No episode of host time is known here.", how_to_collect(page, "dispatch"))
    else:
        if episodes.height == EPISODES:
            page.text("The costliest 100.")
        page.table(
            in_words(episodes), name="host_episodes", title="Episodes of host time",
            columns=EPISODE, titles=TITLES, is_open=True,
        )  # fmt: skip

with ahead:
    pace = page.frame(free_time.host_pace)
    rank = page.view.rank if page.view.rank is not None else page.capture.ranks[0]
    lead = page.frame(free_time.host_lead, rank=rank, step=None)
    if pace.is_empty():
        page.empty("No launches were recorded here.", how_to_collect(page, "dispatch"))
    else:
        if not lead.is_empty():
            page.figure(figures.lead_figure(lead, say), key="host_lead")
            page.text(
                Message("Of rank {rank}: choose another above.", rank=rank),
                "A lead of some microseconds is the latency of a launch: the device waits for"
                " each.",
            )
            page.table(lead, name="host_lead", title="The curve")
        page.text(
            "Host time for a launch: what one starts must take as long on average, or the device"
            " is free."
        )
        page.table(pace, name="host_pace", title="Pace of the host")

verdict_here(page, slot)
page.notes([
    *page.frame(query.notes, rank=None, step=None), *page.frame(free_time.host_notes),
    *page.warnings,
])  # fmt: skip
