"""Device memory: peaks, holders, growth and curves."""
