"""One module an API."""
