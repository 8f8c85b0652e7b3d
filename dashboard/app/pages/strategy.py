"""Which strategy would be fast, and does it fit?"""

import polars as pl
import streamlit as st

from npuscope.analysis.strategy.notes import search_notes
from npuscope.analysis.strategy.results import (
    SIZES,
    chosen_sizes,
    sizes_text,
    strategy_name,
    strategy_words,
    with_sizes,
)
from npuscope.analysis.wording import figure
from npuscope.console.printable import visible
from npuscope.dashboard.app import sources
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.figures.strategy import PARTS, front_figure, parts_figure
from npuscope.messages import Message

BEST = 20

page = open_page("strategy")
say = page.say
page.title("Which strategy would be fast, and does it fit?")
results = sources.strategies()
if results is None:
    page.empty(
        "No search was given.",
        "Run `npuscope search MODEL --cluster 8x8 --only gbs=512,seq=8192 -o strategies.parquet`"
        " and start the dashboard with `--strategies strategies.parquet`.",
    )
    st.stop()
request = {name: visible(text) for name, text in results.request.items()}
slot = page.slot()
page.text(
    Message(
        "Predicted, not measured: {model} on {cluster} NPUs {chip}, {only}",
        model=request.get("model", ""), cluster=request.get("cluster", ""),
        chip=request.get("chip", ""), only=request.get("only", ""),
    )
)  # fmt: skip

choice = chosen_sizes(page.view.only)


def pick_size(name: str) -> None:
    """Put what was picked of one size into the URL."""
    values = [str(one) for one in st.session_state[f"only_{name}"]]
    page.look_at(only=sizes_text({**choice, name: values}))


for place, name in zip(st.columns(len(SIZES)), SIZES, strict=True):
    options = results.strategies[name].unique().sort().cast(pl.String).to_list()
    choice[name] = [one for one in choice.get(name, []) if one in options]
    with place:
        st.session_state[f"only_{name}"] = choice[name]
        st.multiselect(
            say(name.replace("_", " ")), options, key=f"only_{name}", placeholder=say("all"),
            select_all=False, on_change=pick_size, args=(name,),
        )  # fmt: skip
strategies = with_sizes(
    results.strategies, {name: sizes for name, sizes in choice.items() if sizes}
)
best = strategies.filter("fits").head(BEST)
if best.is_empty():
    slot.empty()
    page.empty(
        Message("Of {count} strategies of these sizes none fits.", count=strategies.height),
        "Choose fewer sizes, or search with more recompute.",
    )
    st.stop()
with slot.container():
    first = best.row(0, named=True)
    page.verdict(
        Message(
            "The fastest that fits takes {step} s a step: {strategy}",
            step=figure("{:,.4g}", first["step_ns"] / 1e9), strategy=visible(strategy_name(first)),
        )
    )  # fmt: skip
page.figure(front_figure(strategies, best, results.budget_bytes, say), key="search_front")
page.text("Both axes are logarithmic; the dashed line is the memory that a strategy may take.")

names = [strategy_name(row) for row in best.iter_rows(named=True)]
selection = st.multiselect(
    say("compare"),
    names,
    key="compared",
    placeholder=say("the best twenty"),
    max_selections=8,
    select_all=False,
)
bars = best.filter(pl.Series([not selection or name in selection for name in names]))
page.figure(parts_figure(bars, say), key="search_parts")
words = [say(PARTS[limit][0]) for limit in best["limit"]]
page.table(
    best.with_columns(
        limit=pl.Series(words),
        strategy=pl.Series([strategy_words(row) for row in best.iter_rows(named=True)]),
    ),
    name="search", title="The best twenty, and what limits each",
    columns=[*SIZES, "dp", "last_layers", "step_ns", "peak_bytes", "is_front", "limit",
             "limit_ratio", "strategy"],
    titles={
        "strategy": say("for predict --strategy"),
        "micro_batch": say("micro-batch size"),
    },
)  # fmt: skip
if not results.sensitivity.is_empty():
    page.table(
        results.sensitivity, name="search_sensitivity",
        title="Constants that would put another strategy first, were they wrong",
    )  # fmt: skip
page.notes(search_notes(results.strategies, results.sensitivity))
