"""What is worth changing first: statements with their evidence, by the time at stake.

material  frames of the analyses, summed as the rules need them
rules     material -> findings, one function per question
finding   the record, and the order of a list
"""
