"""Sample sizes, windows and blocks for a finite d, with proven failure bounds: one plan a construction."""
