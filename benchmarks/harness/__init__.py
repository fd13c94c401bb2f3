"""The benchmark harness: a manifest, runners, one record schema, reports and comparisons."""
