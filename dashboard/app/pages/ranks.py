"""Which rank is slow, and why?"""

import polars as pl
import streamlit as st

from npuscope.analysis import means, query
from npuscope.analysis.ranks.answers import slow_pairs
from npuscope.analysis.ranks.stragglers import blame as blamed_ranks
from npuscope.analysis.wording import percent
from npuscope.dashboard.answers import rank_answers as answers
from npuscope.dashboard.app.collecting import how_to_collect
from npuscope.dashboard.app.page import arrow_table, open_page
from npuscope.dashboard.app.plain_text import plain
from npuscope.dashboard.figures import ranks as figures
from npuscope.dashboard.figures.steps import parts_figure
from npuscope.messages import Message

LINKS = 3

page = open_page("ranks")
say = page.say
page.title("Which rank is slow, and why?")
steps = page.frame(query.steps, rank=None, step=None)
hosts = page.frame(answers.hosts, rank=None, step=None)
if steps.is_empty():
    page.empty("No step with figures here.", how_to_collect(page, "steps"))
    st.stop()


def say_who(ranking: pl.DataFrame) -> None:
    """Who is suspected, of what, and how much of the waiting goes back to them."""
    named = blamed_ranks.suspect_reasons(ranking, hosts)
    if not named:
        page.verdict(answers.nobody(ranking))
        return
    share = ranking["share_ratio"][0]
    if share:
        page.verdict(
            Message(
                "{suspects}. {share} of the waiting that ranks cause goes back to rank {rank}.",
                suspects=named, share=percent(share), rank=ranking["rank"][0],
            )
        )  # fmt: skip
    else:
        page.verdict(Message("{suspects}.", suspects=named))


def show_evidence(ranking: pl.DataFrame) -> None:
    """What the verdicts rest on: of the rank chosen above, else of the first suspects."""
    rows = ranking.to_dicts()
    suspects = [row for row in rows if row["verdict"] is not None]
    rows_of_rank = [row for row in rows if row["rank"] == page.view.rank]
    for number, row in enumerate(rows_of_rank or suspects[:LINKS]):
        verdict = blamed_ranks.VERDICT_WORDS.get(row["verdict"], figures.NO_SUSPECT)
        title = f"{say('rank')} {row['rank']}: {say(verdict)}"
        with st.expander(plain(title), expanded=not number):
            lines, sentences = answers.in_sentences(answers.evidence(row))
            if lines:
                st.dataframe(arrow_table(answers.in_words(lines, say)), hide_index=True)
            elif not sentences:
                page.text("This rank does not differ from its peers.")
            page.text(*sentences)
            page.link(
                Message("Rank {rank} in the timeline", rank=row["rank"]), "timeline",
                rank=row["rank"],
            )  # fmt: skip
    if not rows_of_rank and not suspects:
        page.text(answers.nobody(ranking))
    if len(suspects) > LINKS and not rows_of_rank:
        page.text(
            Message(
                "Suspected, too: {count}. Choose a rank above for its evidence.",
                count=len(suspects) - LINKS,
            )
        )


notes = []
suspect_rows = pl.DataFrame()
if page.is_across:
    notes = page.frame(blamed_ranks.blame_notes, rank=None, step=None)
    suspect_rows = page.frame(blamed_ranks.suspects, rank=None)
    silent = page.frame(answers.silent, rank=None, step=None)
    if suspect_rows.is_empty():
        page.empty("No communication was recorded: no rank waits for another.",
                   how_to_collect(page, "masking"))  # fmt: skip
    else:
        say_who(suspect_rows)
        if answers.is_waiting_known(suspect_rows):
            page.figure(figures.culprits_figure(suspect_rows, silent, say), key="culprits")
            page.text(
                "Sum over all other ranks, mean of the steps shown: it counts each rank that waits."
            )
        else:
            page.empty(
                "Which rank makes the others wait is unknown here.",
                notes[0] if notes else "the work of these ranks has no peers to be compared with",
            )
        for words in answers.silent_words(silent):
            page.text(words)
else:
    page.empty("The ranks could not be compared.")

why, by_step, parts_of, on_hosts, on_links = page.parts(
    "The evidence", "Each rank and step", "Where a step's time goes", "Is it the host?",
    "Is it a link?",
)  # fmt: skip
with why:
    if not suspect_rows.is_empty():
        show_evidence(suspect_rows)
        page.table(page.translate(answers.with_hosts(suspect_rows, hosts)), name="ranks")
    else:
        page.empty("The ranks could not be compared.")
with by_step:
    stages = page.frame(answers.stages, rank=None, step=None)
    left, right = st.columns([3, 1.5], vertical_alignment="bottom")
    with left:
        measure = st.segmented_control(
            say("measure"), list(figures.MEASURES), default="stage_ns", required=True,
            format_func=lambda key: say(figures.MEASURES[key]), key="ranks_measure",
        )  # fmt: skip
    with right:
        is_deviation = st.toggle(
            say(
                "against the median rank of step and stage"
                if means.are_known(stages)
                else "against the median rank of the step"
            ),
            value=len(page.capture.ranks) > 1,
            key="deviation",
        )
    if steps[measure].null_count() == steps.height:
        page.empty("This measure is unknown here.", how_to_collect(page, "steps"))
    else:
        chart = figures.steps_figure(
            steps, say, measure, is_deviation=is_deviation, hosts=hosts,
            stages=stages,
        )  # fmt: skip
        page.figure(chart, key="rank_steps")
        page.text("All ranks and steps, whatever is selected above; ranks are ordered by host.")
        page.table(steps, name="steps")
with parts_of:
    parts = page.frame(means.mean_parts, by="rank", rank=None)
    if parts.is_empty():
        page.empty("No step with figures here.", how_to_collect(page, "steps"))
    else:
        page.figure(parts_figure(parts, say), key="rank_parts")
        page.table(parts, name="mean_parts_by_rank", titles={"ns": say("time per step")})
with on_hosts:
    mean_ranks = page.frame(means.mean_steps, by="rank", rank=None, step=None)
    by_host = figures.by_host(mean_ranks, hosts)
    if by_host["host_name"].n_unique() > 1:
        page.figure(figures.hosts_figure(mean_ranks, hosts, say), key="hosts")
        page.table(by_host, name="ranks_by_host")
    else:
        page.text("All ranks here run on one host, or their hosts are not known.")
with on_links:
    pairs = page.frame(slow_pairs, rank=None, step=None)
    if pairs.is_empty():
        page.empty("No link traffic was recorded here.", how_to_collect(page, "links"))
    else:
        slow = pairs.filter(pairs["is_slow"].fill_null(False))
        page.text(
            Message(
                "{count} of {every} pairs of ranks are slower than others of their link.",
                count=slow.height,
                every=pairs.height,
            )
        )
        page.table(pairs, name="slow_pairs", titles={"slow_ratio": say("time / usual")})
page.notes([*notes, *page.frame(query.notes, rank=None, step=None), *page.warnings])
