"""From numbers to medians: models, batches, scaling, certificates."""
