"""A call that a test makes without a connection, and its reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foqs.access.call_permissions import Principal
from foqs.rpc.call import Call, ServerMethod
from foqs.rpc.methods import contract_methods


class RecordedCall(Call):
    """Records its replies and errors.

    Attributes:
        replies: structs and errors.
        complaints: what was logged.
    """

    def __init__(
        self,
        name: str,
        request: Any,
        principal: Principal | None = None,
        method: ServerMethod | None = None,
        deadline: float = 1e9,
    ) -> None:
        self.method = contract_methods({})[name.encode()] if method is None else method
        self.request = request
        self.deadline = deadline
        self.principal = principal
        self.peer = "10.0.0.1:5"
        self.replies: list[Any] = []
        self.complaints: list[str] = []

    def reply(self, to_struct: Callable[[Any], Any], value: Any, give_back: Callable[[], None] | None = None) -> None:
        self.replies.append(to_struct(value))

    def fail(self, error: Exception) -> None:
        self.replies.append(error)

    def log_malformed(self, text: str) -> None:
        self.complaints.append(text)
