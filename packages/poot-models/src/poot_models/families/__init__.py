"""One module for each model family: configuration, weight table, tracer function."""
