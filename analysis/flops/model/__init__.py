"""A model's sizes and FLOPs, from descriptions of many kinds."""
