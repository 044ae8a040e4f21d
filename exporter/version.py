"""The version, in one place: pyproject.toml reads it from here."""

__version__ = "1.0.0"
