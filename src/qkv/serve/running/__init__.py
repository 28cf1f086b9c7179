"""Models in memory: the pool, the thread that runs an engine, and the thread that batches other calls."""
