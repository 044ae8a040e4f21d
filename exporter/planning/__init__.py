"""Sample sizes, windows and blocks for a finite d, with proven failure bounds. Each construction has its own planner."""
