"""Every way out: terminal report, pages, exporter."""
