"""HTTP service around the exported models."""
