"""A capture over time: bins of any length of time, and events where few are in sight.

placing   which clock each rank reads, from where to where it has anything, where steps begin
bins      what each rank does in each of some hundred bins
events    the kernels, operations and host calls of a short stretch
evidence  where the evidence of a finding is
tiles     the same of any stretch as a browser draws it, events that are too short added up
"""
