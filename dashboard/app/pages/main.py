"""The script that Streamlit runs on every visit: the menu, and the page that was asked for."""

import sys
import traceback
from importlib import import_module

import duckdb
import streamlit as st

from npuscope.console.printable import printable
from npuscope.dashboard.app import header, sources
from npuscope.dashboard.app.page import PAGES
from npuscope.dashboard.app.plain_text import plain, sentence
from npuscope.dashboard.locale.language import language_of
from npuscope.errors import NpuscopeError

# Tables need it, and Plotly takes it as soon as another visit's script has begun to import it.
import_module("pandas")
st.set_page_config(page_title="npuscope", layout="wide")
say = language_of(header.language_of_visit())
menu = [
    st.Page(f"{name}.py", title=say(title), url_path=name, default=name == "overview")
    for name, title in PAGES.items()
]
destination = st.navigation(menu, position="top")
try:
    destination.run()
except NpuscopeError as error:
    st.error(sentence(sources.without_paths(say(error.message))))
except duckdb.Error:
    sys.stderr.write(printable(traceback.format_exc()))
    if sources.look_again():
        st.rerun()
    st.error(plain(say("The query failed: see the server's log. Reload the page.")))
