"""Bytes on the wire: the gateway, the short way, bodies and formats."""
