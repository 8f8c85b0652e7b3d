"""What only all ranks of a capture together can tell: groups, clocks, who waited for whom."""
