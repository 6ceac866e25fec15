"""Data sets of long sequences that are generated: ListOps, Pathfinder and recall.

Every item is a function of (seed, part, index) and the options of its task. It does not depend on
the number of items, on the batch or on the number of processes that generate.
"""
