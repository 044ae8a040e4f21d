"""The process: settings, logs, metrics, workers and reloads."""
