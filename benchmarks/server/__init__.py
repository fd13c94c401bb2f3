"""What the server gives its clients, measured on one machine: ``python -m benchmarks.server --help``."""
