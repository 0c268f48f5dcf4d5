"""One fit with selected batches: the session, its steps, the plan of each epoch and the loader that follows it."""
