"""Is the training healthy?"""

import polars as pl
import streamlit as st

from npuscope.analysis.health import run_health
from npuscope.analysis.health.health import health_verdict, summary_row
from npuscope.analysis.health.post_training import health_bounds, health_phases
from npuscope.analysis.health.token_drops import health_dropped
from npuscope.analysis.wording import UNKNOWN, number, percent
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.figures.health import dropped_figure, health_figure
from npuscope.dashboard.terminal.health_tables import event_rows

# Rank, step and window were chosen in another capture.
ALL_OF_IT = dict.fromkeys(("rank", "step", "start_ns", "end_ns"))

page = open_page("health")
say = page.say
page.title("Is the training healthy?")
health = page.frame(run_health.run_health, capture=None, rank=None, step=None)
if health is None:
    page.empty(
        "No training log was read with this run.",
        "Give it to ingest or watch with --train-log.",
    )
    st.stop()
captures = page.frame(
    run_health.health_captures, capture=None, rank=None, step=None, is_across=page.is_across
)
(summary,) = summary_row(health).to_dicts()
page.verdict(health_verdict(health))


def rate(value: float | None) -> str:
    """Spikes per 1,000 steps."""
    return UNKNOWN if value is None else f"{value:,.3g}"


tiles = (
    ("Goodput", percent(summary["goodput_ratio"])),
    ("Steps in the log", number(summary["steps_count"])),
    ("Gradient spikes per 1,000 steps", rate(summary["grad_norm_spikes_per_1000_steps"])),
    ("Loss spikes per 1,000 steps", rate(summary["loss_spikes_per_1000_steps"])),
    ("Steps without a number", number(summary["not_finite_count"])),
)
for place, (label, value) in zip(st.columns(len(tiles)), tiles, strict=True):
    with place:
        page.tile(label, value, name="health_tiles")
points = run_health.health_points(health.steps)
if not points.is_empty():
    page.figure(health_figure(points, health.events, captures, say), key="health")
    page.text(
        "Grey bands are profiled steps, triangles spikes, dashed lines changes of level.",
        "At most 1,000 stretches of equally many steps: medians, of the gradient norm the highest.",
    )
if not health.events.is_empty():
    labels = {"kind": "event", "metric": "of", "step": "from step", "end_step": "to",
              "count": "steps", "period_steps": "every", "value": "value", "usual": "usual",
              "cost_ns": "cost"}  # fmt: skip
    page.table(
        page.translate(pl.DataFrame(event_rows(health.events), infer_schema_length=None)),
        name="health_events", title="Events", columns=list(labels),
        titles={column: say(title) for column, title in labels.items()},
    )  # fmt: skip
if not captures.is_empty():
    links = [page.go("overview", capture=one, **ALL_OF_IT) for one in captures["capture"]]
    page.table(
        page.translate(captures).with_columns(look=links),
        name="health_captures",
        title="Captures and events",
        columns=[*captures.columns[1:], "look"],
        links=["look"],
        titles={"kind": say("event")},
    )
phases = health_phases(health.steps)
if not phases.is_empty():
    page.table(page.translate(phases), name="health_phases", title="Phases of a mean step")
    page.table(
        page.translate(health_bounds(health.steps)), name="health_bounds",
        title="No step is shorter, if its phases take what they take now",
    )  # fmt: skip
if not health.heads.is_empty():
    page.table(health.heads, name="health_heads", title="MTP heads: accepted at least")
drops, sentences = page.frame(
    health_dropped, target=page.store_path, capture=None, rank=None, step=None
)
if not drops.is_empty():
    page.heading("Dropped tokens")
    if drops["dropped_ratio"].count():
        page.figure(dropped_figure(drops, say), key="health_dropped")
        page.text("The share of tokens that experts refused in each counted step.")
    for sentence in sentences:
        page.text(sentence)
