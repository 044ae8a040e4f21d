"""The process: settings, logs, metrics, workers, reloads and Ray."""
