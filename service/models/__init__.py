"""Models: manifest entries, sessions, the registry of loaded models, and building missing ones."""
