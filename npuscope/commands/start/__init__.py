"""Start here: the report, findings, the doctor, the dashboard."""
