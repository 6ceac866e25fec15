"""`saccade analyze`: crossings, lengths of intermediate results, distance from softmax."""
