"""npuscope: where each training step's time goes on Ascend NPUs, what it costs, what to change."""

__version__ = "0.1.0"
