"""From training jobs and files on disk to canonical tables in a store."""
