"""Errors as OpenAI's clients read them: a status, and ``{"error": {message, type, param, code}}``.

Everything that goes wrong with a request becomes an :class:`ApiError` where it is known; the
application turns it into a response. Its clients retry 429 and 503 by themselves, after the
seconds of ``Retry-After``.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A refused request.

    Args:
        status: of HTTP.
        message: for people; never holds a key.
        param: the field of the request that is wrong.
        code: for programs, such as ``context_length_exceeded``.
        retry_after: seconds after which trying again makes sense.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}

    def body(self) -> dict[str, Any]:
        """The object that clients read."""
        fallback = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _TYPES.get(self.status, fallback)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that can't be served as it is: 400."""
    return ApiError(400, message, param=param, code=code)


def busy(message: str = "all slots and the queue are taken; try again") -> ApiError:
    """429. One second is ours: a turn of the shipped policy takes less."""
    return ApiError(429, message, code="queue_full", retry_after=1)


def from_validation(err: ValidationError) -> ApiError:
    """The first fault that pydantic found, by the field's name."""
    first = err.errors(include_url=False, include_context=False, include_input=False)[0]
    # a union names its members in the path: keep what the caller wrote
    path = [str(part) for part in first["loc"] if not str(part).startswith(("list[", "function-", "str"))]
    param = ".".join(path) or None
    if first["type"] == "extra_forbidden":
        return bad(f"unknown field {param}: this server does not know it", param, "unknown_parameter")
    return bad(f"{param or 'request'}: {first['msg'].removeprefix('Value error, ')}", param)
