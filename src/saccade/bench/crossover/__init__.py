"""`saccade analyze crossover`: the number of tokens from which linear time pays on this machine."""
