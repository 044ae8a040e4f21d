"""Builders of median networks and their export to ONNX."""

from exporter.version import __version__ as __version__
