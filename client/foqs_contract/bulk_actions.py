"""The actions on all items that match a filter: the call `bulk` makes them page by page, a bulk job to the end.

Holds `BULK_ACTIONS`, one row for each action. How requests choose it, what a job records,
error texts, metrics, the command line and the console follow from its row. Always true: a job
makes its pages by the call, so each action is both. Pure, without Thrift.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from foqs_contract.errors import InvalidArgument


@dataclass(slots=True, frozen=True)
class BulkActionRow:
    """An action on the items that match a filter.

    Attributes:
        name: the action's name, for people and in the records of jobs. An action that changes items has the name of their `EventKind`.
        number: its number in `BulkAction` of thrift/foqs.thrift. None: older hosts could not read one more, so the field
            `chosen_by` chooses the action in its place.
        chosen_by: the field of a request that chooses the action. It is a flag, unless the action takes it.
        takes: the field of a request that has its values, `change` or `move_to`. Empty: it has none.
        changes_items: whether it changes the items; otherwise it counts them.
        of_dead_items: whether only dead items can be changed in this way.
        in_one_topic: whether the filter names one topic, and the action another one.
        removes_matches: whether an item does not match the filter any more after the action.
        label: what it does, for a list of choices.
        warning: what a person must know before the start.
    """

    name: str
    number: int | None = None
    chosen_by: str = "action"
    takes: str = ""
    changes_items: bool = True
    of_dead_items: bool = False
    in_one_topic: bool = False
    removes_matches: bool = True
    label: str = ""
    warning: str = ""

    @property
    def flag(self) -> str | None:
        """The field that chooses the action by being true."""
        return self.chosen_by if self.number is None and self.chosen_by != self.takes else None

    def fields(self, change: Any = None, move_to: Any = None) -> dict[str, Any]:
        """Return the fields of a struct with the action and its values."""
        flag = {} if self.flag is None else {self.flag: True}
        return {"action": self.number, "change": change, "move_to": move_to, **flag}


COUNT: Final = BulkActionRow("count", chosen_by="count_only", changes_items=False, removes_matches=False)
REDRIVE: Final = BulkActionRow("redrive", 3, of_dead_items=True, label="Redrive: make dead items ready again")
MOVE: Final = BulkActionRow(
    "move", chosen_by="move_to", takes="move_to", in_one_topic=True, label="Move to another topic"
)
UPDATE: Final = BulkActionRow(
    "update", 2, takes="change", removes_matches=False, label="Change priority, delay or metadata"
)
CANCEL: Final = BulkActionRow(
    "cancel", 1, label="Delete", warning="This deletes the items. They cannot be brought back."
)

BULK_ACTIONS: Final[Mapping[str, BulkActionRow]] = {
    action.name: action for action in (COUNT, REDRIVE, MOVE, UPDATE, CANCEL)
}
"""The actions by name. Of two fields that choose an action, the row that is first counts; the other field is refused."""
CHANGES: Final[Mapping[str, BulkActionRow]] = {
    name: action for name, action in BULK_ACTIONS.items() if action.changes_items
}

_FIELDS: Final = tuple(
    dict.fromkeys(field for action in BULK_ACTIONS.values() for field in (action.chosen_by, action.takes) if field)
)
"""The fields of a request that choose an action or have its values."""
_BY_NUMBER: Final = {action.number: action for action in BULK_ACTIONS.values() if action.number is not None}
_CHOICES: Final = (
    f"give {', '.join(action.name.upper() for action in _BY_NUMBER.values())}, or in its place "
    + " or ".join(action.chosen_by for action in BULK_ACTIONS.values() if action.number is None)
)


def action_of(struct: Any) -> BulkActionRow | None:
    """Return the action that a request, a `BulkChange` or a `BulkJob` chooses; None if this version knows no such action."""
    for action in BULK_ACTIONS.values():
        if action.number is None and _is_given(struct, action.chosen_by):
            return action
    return _BY_NUMBER.get(struct.action)


def check_action(request: object) -> BulkActionRow:
    """Return the action that a request chooses.

    Raises:
        InvalidArgument: it chooses none, or has a field that the action does not take.
    """
    action = action_of(request)
    if action is None:
        raise InvalidArgument(_CHOICES, field="action")
    for field in _FIELDS:
        if field not in (action.chosen_by, action.takes) and _is_given(request, field):
            raise InvalidArgument(f"the action {action.name} does not take this; leave it out", field=field)
    return action


def _is_given(struct: Any, field: str) -> bool:
    """Return whether a struct has a field that is not false; some structs do not know every field."""
    return getattr(struct, field, None) not in (None, False)
