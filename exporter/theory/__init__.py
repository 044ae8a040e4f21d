"""Research tools: audits, reductions, the frontier, the atlas and asymptotic theorems."""
