"""`saccade bench model TARGET`: every attention in one model, and the efficiency of that model."""
