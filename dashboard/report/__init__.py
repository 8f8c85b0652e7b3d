"""One report: in the terminal, on a page, as Markdown."""
