"""A problem as a response, in the dialect of the path it is asked on."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import Response

from service import json_text
from service.errors import ProblemError

PROBLEM_JSON = "application/problem+json"


def protocol_response(problem: ProblemError) -> Response:
    """The error as the Open Inference Protocol wants it: wrong numbers are 400, and the place is part of the sentence."""
    place = "".join(f" ({name} {problem.members[name]})" for name in ("vector", "index") if name in problem.members)
    status = 400 if problem.status == 422 else problem.status
    return Response(json_text.short({"error": problem.detail + place}), status, problem.headers, "application/json")


def problem_response(problem: ProblemError, instance: str) -> Response:
    """The error as `application/problem+json`. The type stays "about:blank": the status says which kind it is."""
    content = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        "instance": instance,
        **problem.members,
    }
    return Response(json_text.short(content), problem.status, problem.headers, PROBLEM_JSON)
