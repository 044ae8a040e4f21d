"""The kind of route whose function reads its request itself."""

from __future__ import annotations

from typing import Any

from fastapi.routing import APIRoute


class PlainRoute(APIRoute):
    """A route that hands the request to its function as it is: no dependencies to solve, no body model to validate."""

    def get_route_handler(self) -> Any:
        return self.endpoint
