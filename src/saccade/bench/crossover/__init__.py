"""`saccade analyze crossover`: tokens above which linear time is faster here."""
