"""The timeline that torch_npu and msprof write: trace_view.json and msprof_*.json."""
