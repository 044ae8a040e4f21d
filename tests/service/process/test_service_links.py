"""Variables that Kubernetes sets for a Service called `median` are no options, and stop no start."""

from __future__ import annotations

import pytest

from service.process.settings import Settings

LINKS = {
    "MEDIAN_SERVICE_HOST": "10.0.0.1",
    "MEDIAN_SERVICE_PORT": "80",
    "MEDIAN_SERVICE_PORT_HTTP": "80",
    "MEDIAN_PORT": "tcp://10.0.0.1:80",
    "MEDIAN_PORT_80_TCP": "tcp://10.0.0.1:80",
    "MEDIAN_PORT_80_TCP_PROTO": "tcp",
    "MEDIAN_PORT_80_TCP_PORT": "80",
    "MEDIAN_PORT_80_TCP_ADDR": "10.0.0.1",
}


def test_links_are_ignored_and_options_are_not() -> None:
    assert Settings.from_env(LINKS) == Settings()
    assert Settings.from_env({**LINKS, "MEDIAN_PORT": "81"}).port == 81


def test_a_variable_that_is_neither_is_named() -> None:
    with pytest.raises(ValueError, match="MEDIAN_PROT"):
        Settings.from_env({**LINKS, "MEDIAN_PROT": "81"})
