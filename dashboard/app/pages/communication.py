"""Is communication hidden behind compute?"""

import streamlit as st

from npuscope.analysis import means, query
from npuscope.analysis.communication import volume
from npuscope.analysis.ranks.answers import mean_waits
from npuscope.analysis.wording import percent
from npuscope.dashboard.app.collecting import how_to_collect
from npuscope.dashboard.app.finding_cards import verdict_here
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.figures import communication as figures
from npuscope.dashboard.figures.steps import parts_figure
from npuscope.errors import UsageError
from npuscope.messages import Message

BY = {"kind": "parallel kind", "type": "type", "op": "type and group"}

page = open_page("communication")
say = page.say
page.title("Is communication hidden behind compute?")


def draw_parts() -> None:
    """Where a mean step goes."""
    parts = page.frame(means.mean_parts)
    if parts.is_empty():
        page.empty("No step with figures here.", how_to_collect(page, "steps"))
    else:
        page.figure(parts_figure(parts, say), key="parts")
        page.table(parts, name="mean_parts", titles={"ns": say("time per step")})


kinds = page.frame(query.comm, by="kind")
if kinds.is_empty():
    reason = page.frame(query.only_time_of_communication)
    page.empty(reason or "No communication was recorded here.", how_to_collect(page, "masking"))
    if reason is not None:
        draw_parts()
        page.notes([*page.frame(query.notes, rank=None, step=None), *page.warnings])
    st.stop()
slot = page.slot()
by = st.segmented_control(
    say("by"), list(BY), default="kind", required=True, format_func=lambda key: say(BY[key]),
    key="masking_by",
)  # fmt: skip
rows = page.frame(means.mean_comm, by="group" if by == "op" else by)
if rows["masked_ns"].null_count() == rows.height:
    masking = page.frame(means.mean_steps)["masking_ratio"].drop_nulls()
    page.empty(
        "Only HCCL's own measurements are here: the overlap with computing is unknown."
        if masking.is_empty()
        else Message(
            "{share} of communication is masked in all; what is masked of each kind is unknown.",
            share=percent(masking[0]),
        ),
        how_to_collect(page, "masking"),
    )
else:
    page.figure(figures.masking_figure(rows, say), key="communication")
    page.text(
        "Mean of the selected ranks and steps; % is the masking ratio. Kinds may communicate at"
        " the same time, so the bars overlap; exposed_attributed_ns in the table counts no time"
        " twice."
    )
page.table(
    rows, name="communication_means", title="A mean step of a rank",
    titles={"total_ns": say("time per step and rank")},
)  # fmt: skip
page.table(
    page.frame(query.comm, by=by), name=f"communication_by_{by}", title="Every rank and step"
)

goes, wait, links, between, others = page.parts(
    "Where a step's time goes",
    "Do ranks wait, or do they transfer?",
    "How fast are the links?",
    "How much does each rank send to each other?",
    "Other all-to-all schemes",
)
with goes:
    draw_parts()

with wait:
    waits = page.frame(mean_waits) if page.is_across else None
    if waits is None or waits.is_empty():
        page.empty(
            "Waiting and transfer cannot be separated here.", how_to_collect(page, "waiting")
        )
    else:
        page.figure(figures.waiting_figure(waits, say), key="waiting")
        page.text(
            "Shortest duration: the member of an operation with the shortest duration does not"
            " wait, so its duration is the transfer time. Last arrival: no transfer starts before"
            " the last member arrives, on aligned clocks. Both cover operations recorded by all"
            " members; HCCL's own times cover all that it measured."
        )
        page.table(page.translate(waits), name="communication_waits")

with links:
    rates = page.frame(means.mean_links)
    if rates["bandwidth_bytes_per_s"].null_count() == rates.height:
        page.empty("No link traffic was recorded here.", how_to_collect(page, "links"))
    else:
        page.figure(figures.links_figure(rates, say), key="links")
        if rates["peak_bytes_per_s"].null_count():
            page.text("For some links of this chip no peak bandwidth is published.")
        page.table(rates, name="links")
        page.table(page.frame(volume.links), name="link_traffic", title="Every rank and step")
        bandwidth = page.frame(volume.bandwidth)
        contention = page.frame(volume.contention)
        both = page.frame(volume.mean_contention)
        if not both.is_empty():
            with st.expander(say("Bandwidth of operations, and while overlapping computing")):
                page.figure(figures.contention_figure(both, say), key="contention")
            page.table(contention, name="contention", title="Bandwidth beside computing, and alone")
        page.table(bandwidth, name="bandwidth", title="Bandwidth while operations transfer")

with between:
    matrix = page.frame(volume.matrix)
    pairs = page.frame(volume.mean_pairs)
    rank_pairs = pairs.drop_nulls(["src_rank", "dst_rank"])
    if rank_pairs.is_empty():
        page.empty("Traffic between ranks was not recorded here.", how_to_collect(page, "matrix"))
    else:
        left, right = st.columns(2)
        with left:
            measure = st.segmented_control(
                say("measure"), list(figures.MEASURES), default="size", required=True,
                format_func=lambda key: say(key), key="matrix_measure",
            )  # fmt: skip
        with right:
            every = say("all kinds")
            kind = st.selectbox(
                say("parallel kind"), [None, *sorted(rank_pairs["kind"].unique())],
                format_func=lambda key: every if key is None else key, key="matrix_kind",
            )  # fmt: skip
        page.figure(figures.matrix_figure(rank_pairs, say, measure, kind), key="matrix")
        if rank_pairs.height < pairs.height:
            page.text(
                Message(
                    "{count} of {every} pairs are left out: their global ranks are unknown.",
                    count=pairs.height - rank_pairs.height,
                    every=pairs.height,
                )
            )
        page.table(matrix, name="rank_matrix")

with others:
    left, right = st.columns(2)
    with left:
        experts = st.number_input(
            say("number of experts"), min_value=1, max_value=65536, value=None, step=1
        )
    with right:
        top_k = st.number_input(say("experts per token"), min_value=1, max_value=1024, value=None)
    if experts is None or top_k is None:
        page.text("Enter how tokens are routed.")
    elif top_k > experts:
        page.text("More experts per token than experts.")
    else:
        try:
            schemes = page.frame(
                volume.hierarchy, rank=None, step=None, experts=int(experts), top_k=int(top_k)
            )
        except UsageError as error:
            page.empty(error.message)
        else:
            if schemes.is_empty():
                page.empty("No all-to-all was recorded here.")
            else:
                page.table(schemes, name="all_to_all")

verdict_here(page, slot)
page.notes([*page.frame(query.notes, rank=None, step=None), *page.warnings])
