"""Figures of the dashboard: frames of the analyses as plotly figures, a module per page."""
