"""The forms in which profilers write what they saw."""
