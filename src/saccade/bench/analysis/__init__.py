"""What `saccade analyze` finds out: crossing points, scaling of norms, distance from softmax."""
