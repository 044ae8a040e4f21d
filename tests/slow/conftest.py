"""The servers and models of tests/service, for the slow tests too."""

from tests.service.conftest import models, serve

__all__ = ["models", "serve"]
