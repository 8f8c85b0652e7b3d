"""What changed between two captures, and is it real?"""

import polars as pl
import streamlit as st

from npuscope.analysis import query
from npuscope.analysis.compare import difference
from npuscope.analysis.compare.side import Side, kernels_in_full, measure
from npuscope.analysis.compare.waterfall import needs_all
from npuscope.analysis.timeline.bins import overview
from npuscope.analysis.timeline.shared_axis import extent, step_borders
from npuscope.analysis.wording import delta_ms
from npuscope.dashboard.answers import timeline_answers as answers
from npuscope.dashboard.app.page import PAGES, Page, open_page
from npuscope.dashboard.app.state import BASE, PLACES, KnownCapture
from npuscope.dashboard.figures.comparison import change_figure
from npuscope.dashboard.figures.timeline import Slot, aligned_figure
from npuscope.dashboard.report import comparison as words
from npuscope.errors import UsageError
from npuscope.messages import Message

WHOSE = {"": "the mean rank", "stage": "each stage", "rank": "each rank"}

page = open_page("compare")
say, label_of = page.say, page.choices.label
page.title("What changed from A to B, and is it real?")
baseline = page.choices.base(page.view)
others = [one for one in page.choices.captures if one != page.capture]
if not others:
    page.empty(
        "There is one capture here: a comparison needs two.",
        "Ingest another capture, or start the dashboard with the folders of both.",
    )
    st.stop()


def based_on(one: KnownCapture) -> dict[str, str]:
    """What the URL says of a baseline."""
    return dict(zip(BASE, (one.store, one.run, one.capture), strict=True))


def steps_of(one: Page, side: Side) -> list[answers.Window]:
    """The compared steps of a capture, from when to when; none where nothing was recorded."""
    at = one.frame(extent)
    if at.window_ns is None:
        return []
    steps = side.steps["step"].to_list()
    return answers.windows(one.frame(step_borders, at=at), steps, at.window_ns)


def slots(one: Page, windows: list[answers.Window]) -> list[Slot]:
    """The bins of some steps of a capture."""
    at = one.frame(extent)
    columns = answers.columns_of(len(windows), ranks)
    return [
        Slot(
            step.step,
            one.frame(overview, at=at, window_ns=(step.start_ns, step.end_ns), columns=columns),
            step.start_ns,
            step.at_ns,
        )
        for step in windows
    ]


slot = page.slot()
with st.container(horizontal=True, vertical_alignment="bottom"):
    st.session_state["base"] = baseline
    st.selectbox(
        say("A, the baseline"), others, format_func=label_of, key="base",
        placeholder=say("choose a baseline"),
        on_change=lambda: page.look_at(**based_on(st.session_state["base"])),
    )  # fmt: skip
    st.text_input(
        say("B, chosen above"),
        label_of(page.capture),
        disabled=True,
        key=f"b_{label_of(page.capture)}",
    )
    if baseline is None:
        slot.empty()
    elif st.button(say("Swap A and B"), icon=":material/swap_horiz:", width="content"):
        choice = {"store": baseline.store, "run": baseline.run, "capture": baseline.capture}
        page.change(**based_on(page.capture), **choice, start_ns=None, end_ns=None)
if baseline is None:
    page.empty("No other capture here is of this job: choose a baseline.")
    st.stop()
if page.view.base is None:
    page.look_at(**based_on(baseline))  # a link shows the same when there are more captures
both = (page.at(baseline), page.at(page.capture))
ranks = max(len(one.capture.ranks) for one in both)


sides: list[Side] = []
for one in both:
    try:
        side = one.later(measure, by=page.view.by, target=str(one.store_path))
    except UsageError as error:  # there is nothing to compare
        slot.empty()
        page.empty(Message("{place}: {note}", place=label_of(one.capture), note=error.message))
        st.stop()
    if side is None:
        slot.empty()
        st.stop()
    sides.append(side)
if needs_all(sides[0], sides[1]):
    kernels = [one.later(kernels_in_full, by=page.view.by) for one in both]
    if None in kernels:
        slot.empty()
        st.stop()
    sides = [side.with_kernels(kernels_of) for side, kernels_of in zip(sides, kernels, strict=True)]
refusal = ""
try:
    comparison = difference.compare(sides[0], sides[1], page.view.by)
except UsageError as error:  # ranks of other layouts, or no stage that both know
    comparison, refusal = difference.compare(sides[0], sides[1]), error.message

with slot.container():
    page.verdict(words.headline(comparison))
    for sentence in words.largest_change(comparison):
        page.text(sentence)
    if comparison.delta_low_ns is not None and comparison.delta_high_ns is not None:
        page.text(
            Message(
                "B - A: {delta} ms, 95 % interval from {low} to {high} ms",
                delta=delta_ms(comparison.delta_ns), low=delta_ms(comparison.delta_low_ns),
                high=delta_ms(comparison.delta_high_ns),
            )
        )  # fmt: skip
    page.text(*difference.remarks(comparison))
    page.link(f"{say(PAGES['timeline'])} →", "timeline", beneath=1, **based_on(baseline))
origin, real, over_time = page.parts("Where it comes from", "Is it real?", "Both over time")
with origin:
    page.figure(change_figure(comparison.rows, say), key="compare")
    page.text(
        "All ranks and steps but warm-up, whatever is selected above; the bars of the parts add"
        " up to the difference. Where the axis does not begin at 0, the steps are lines."
    )
    per_token = [f"{side}_ns_per_token" for side in ("a", "b")]
    st.session_state["by"] = page.view.by or ""
    st.segmented_control(
        say("Where it comes from"), ["", *PLACES], required=True, key="by",
        format_func=lambda one: say(WHOSE[one]),
        on_change=lambda: page.look_at(by=st.session_state["by"] or None),
    )  # fmt: skip
    if refusal:
        page.empty(refusal)
    rows = comparison.rows if comparison.at is None else comparison.at
    page.table(
        words.with_own_sides(rows, ["a_ns", "b_ns", *per_token]),
        name=f"compare{f'_{page.view.by}' if comparison.at is not None else ''}",
        title="Where it comes from",
        columns=[one for one in rows.columns if comparison.is_per_token or one not in per_token],
        titles={
            "name": say("of"), "change": say("by"), "a_ns": "A", "b_ns": "B", "delta_ns": "B - A"
        },
    )  # fmt: skip
    if comparison.changes:
        facts = [{"fact": fact, "a": a, "b": b} for fact, (a, b) in comparison.changes.items()]
        page.table(pl.DataFrame(facts), name="changed_facts", title="What else differs",
                   titles={"a": "A", "b": "B"})  # fmt: skip
with real:
    labels = {"what": "mean of a step (ms)", "a": "A", "b": "B", "delta": "B - A",
              "low": "95 % from", "high": "to", "verdict": "verdict"}  # fmt: skip
    page.table(
        page.translate(pl.DataFrame(words.measure_rows(comparison)).select(*labels)),
        name="compare_measures", title="Is it real?", is_open=True,
        titles={column: say(title) for column, title in labels.items()},
    )  # fmt: skip
with over_time:
    ours, theirs = (steps_of(one, side) for one, side in zip(both, sides, strict=True))
    pairs, length_ns = answers.side_by_side(ours, theirs, page.view.step, ranks)
    if not pairs:
        page.empty("No kernel and no communication operation was recorded here.")
    else:
        share = page.picked_share()
        chart = aligned_figure(
            [
                (f"{side}: {label_of(one.capture)}", slots(one, [pair[number] for pair in pairs]))
                for number, (side, one) in enumerate(zip(("A", "B"), both, strict=True))
            ],
            length_ns, share, say,
        )  # fmt: skip
        page.figure(chart, key=f"aligned_{share}", name="heat")
        page.text(
            "Steps stand in pairs that begin at the same place, on one scale: the first that are no"
            " warm-up, or the one chosen above."
        )
page.notes(
    [
        Message("{place}: {note}", place=side, note=note)
        for side, one in zip(("A", "B"), both, strict=True)
        for note in (*one.frame(query.notes), *one.warnings)
    ]
)
