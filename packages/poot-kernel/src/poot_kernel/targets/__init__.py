"""Code generators: one folder a target, and what GPU targets share in ``common``."""
