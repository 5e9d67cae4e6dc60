"""The catalog's document: all that is configured by calls, and the assignment of key slots to shards.

Holds the frozen document and its JSON form. Always true: names are valid,
settings lie within their ranges, a namespace has no empty grant, no key slot of
a tier has two shards. Fields that only a newer version knows are kept. Each change
increases `version` by one; version 0 is the empty document, which is never stored.
A document with policies of topics has format 2, which a host refuses that would not keep them.
Deleting a namespace deletes its grants, pauses, policies and queues. Pure; knows nothing of where
documents are stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, GetPydanticSchema, PlainValidator
from pydantic_core import core_schema

from foqs.catalog.key_slot_assignment import SlotAssignment, SlotConflict, format_slots, parse_slot_range, with_slots
from foqs.catalog.namespace_settings import SETTING_RANGES
from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.groups.topic_turns import WEIGHT_MAX
from foqs.core.items import validation
from foqs.core.items.idempotency_keys import INCARNATION_MAX
from foqs.core.items.item import SHARD_MAX
from foqs_contract.call_table import Permission as Permission
from foqs_contract.errors import FoqsError
from shardmgr.model import MalformedDocument as MalformedDocument
from shardmgr.model import NewerDocument as NewerDocument
from shardmgr.model import Unknown
from shardmgr.strict_json import Form, abbreviate, build_with_unknown, number_key, parse_document

FORMAT_VERSION: Final = 1
FORMAT_WITH_POLICIES: Final = 2
"""The format of a document with policies of topics. An older host refuses it: it does not start, and takes no shard over."""
FORMAT_MAX: Final = FORMAT_WITH_POLICIES
GROUP_LEASES_MAX: Final = 1_000
"""The highest limit on the leases of a group: an owner remembers each lease of a group."""
RELAXED: Final = "relaxed"
"""The order of a topic whose items a host delivers though a peer has better ones."""
WEIGHTS_MAX: Final = 100
"""The most groups of a fair topic with a weight of their own: each change stores the whole catalog."""
VERSION_MAX: Final = (1 << 63) - 1
IDENTITY_MAX: Final = (1 << 63) - 1
_NUMBER_BYTES: Final = 8
_SETTINGS: Final = "settings"
TIME_S_MAX: Final = 253_402_300_799
"""The last second of the year 9999."""


@dataclass(slots=True, frozen=True)
class QueueEntry:
    """A queue as SQS' clients see it: a topic with attributes and tags, which only `foqs.sqs` interprets.

    Times are seconds since 1970-01-01 UTC.
    """

    attributes: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    created_at_s: int = 0
    changed_at_s: int = 0
    key_window_ms: int | None = None
    """For how long the idempotency keys of new items of its topic are remembered; None: as the namespace says."""
    keys_in_topic: bool = False
    """Whether keys are unique among all groups of its topic, which then are in one shard. It never changes."""
    keys_alone: bool = False
    """Whether an item with a group and a known key is a repeat, whatever else it is. Else one that differs is a conflict."""
    keys_since_ms: int = 0
    """When it was created, in milliseconds since 1970-01-01 UTC: so its keys differ from those of a deleted queue of its name."""
    is_fair: bool = False
    """Whether the groups of its topic take turns by time, unless the topic has a policy."""
    unknown: Unknown = field(default_factory=dict)
    """The fields that only a newer version knows. They are kept."""


@dataclass(slots=True, frozen=True)
class PolicyRecord:
    """How the items of a topic are delivered. A document has no policy without a rule."""

    group_leases_max: int | None = None
    """How many items of one group may be leased at once; 1: strict order; None: any number."""
    fair: Fairness | None = None
    """What the groups share by taking turns; None: items come in their order."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """Of groups of a fair topic that have another weight than 1; none without `fair`."""
    is_relaxed: bool = False
    """Whether a host delivers its own items though a peer has better ones."""
    unknown: Unknown = field(default_factory=dict)
    """The fields that only a newer version knows. They are kept."""

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing, not even to a newer version."""
        return self.rules is None and not self.is_relaxed and not self.unknown

    @property
    def rules(self) -> GroupRules | None:
        """The rules for groups; None if it has none."""
        if self.group_leases_max is None and self.fair is None:
            return None
        return GroupRules(self.group_leases_max, self.fair, self.weights)


@dataclass(slots=True, frozen=True)
class NamespaceRecord:
    """A namespace as it was configured. Settings that it lacks are as in the host's `[namespace]`."""

    tier: str | None = None
    settings: Mapping[str, int] = field(default_factory=dict)
    """The settings that it has of its own; see `namespace_settings.SETTING_RANGES`."""
    grants: Mapping[str, frozenset[Permission]] = field(default_factory=dict)
    """The permissions by principal; none is empty."""
    paused: frozenset[str] = frozenset()
    """Topics that are not delivered."""
    deleting: frozenset[int] | None = None
    """While it is being deleted: the shards that hold no items of it and accept none. Else None."""
    incarnation: int = 0
    """A random number that distinguishes it from a deleted namespace of the same name.

    0 if it was created by an older version or together with the catalog.
    """
    queues: Mapping[str, QueueEntry] = field(default_factory=dict)
    """The queues that were created over SQS, by the name of their topic."""
    policies: Mapping[str, PolicyRecord] = field(default_factory=dict)
    """The policies of topics; none is empty."""
    unknown: Unknown = field(default_factory=dict)
    """The fields that only a newer version knows, and in its `settings` the settings. They are kept."""
    _stored: list[bytes] = field(default_factory=list, init=False, repr=False, compare=False)

    def stored(self) -> bytes:
        """Return its JSON in one line, as it is stored. It is rendered once: a change of another namespace costs nothing here."""
        if not self._stored:
            self._stored.append(_in_one_line(_namespace_to_json(self)))
        return self._stored[0]


@dataclass(slots=True, frozen=True)
class Document:
    """One version of the catalog."""

    version: int
    namespaces: Mapping[str, NamespaceRecord]
    slots: Mapping[str, SlotAssignment] = field(default_factory=dict)
    """The assignment of key slots by tier."""
    identity: int = 0
    """The random number that the catalog has from its creation on. 0 if an older version created it."""
    unknown: Unknown = field(default_factory=dict)
    """The fields that only a newer version knows. They are kept."""

    def incarnation_number(self, name: str) -> int:
        """Return the number by which callers know the incarnation of a namespace, from 1.

        The identity of the catalog and the name stand for an incarnation that the namespace does not have.
        """
        own = self.namespaces[name].incarnation
        if own:
            return own
        key = self.identity.to_bytes(_NUMBER_BYTES)
        digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_NUMBER_BYTES, key=key).digest()
        return int.from_bytes(digest) % INCARNATION_MAX + 1


EMPTY_DOCUMENT: Final = Document(0, {})


def format_of(document: Document) -> int:
    """Return the format of a document: the oldest one that has all that it holds."""
    has_policies = any(namespace.policies for namespace in document.namespaces.values())
    return FORMAT_WITH_POLICIES if has_policies else FORMAT_VERSION


# ------------------------------------------------------------------- to JSON


def render(document: Document) -> str:
    """Return the document as JSON for people, the same text for equal documents."""
    namespaces = {name: _namespace_to_json(namespace) for name, namespace in sorted(document.namespaces.items())}
    fields = _head_to_json(document) | {"namespaces": namespaces} | _tail_to_json(document)
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


def render_stored(document: Document) -> bytes:
    """Return the document as JSON as it is stored, with a line for each namespace; the same bytes for equal documents.

    Only namespaces that have changed are rendered: a catalog may be large, and each change stores the whole.
    """
    namespaces = b",\n".join(
        [
            b"%b: %b" % (_in_one_line(name), namespace.stored())
            for name, namespace in sorted(document.namespaces.items())
        ]
    )
    head, tail = (_in_one_line(part)[1:-1] for part in (_head_to_json(document), _tail_to_json(document)))
    return b'{%b, "namespaces": {\n%b\n}%b%b}\n' % (head, namespaces, b", " if tail else b"", tail)


def stored_bytes(document: Document) -> int:
    """Return about how many bytes a document has as it is stored, without its key slots."""
    return sum([len(name) + len(namespace.stored()) for name, namespace in document.namespaces.items()])


def _in_one_line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _head_to_json(document: Document) -> dict[str, Any]:
    fields: dict[str, Any] = {"format": format_of(document), "version": document.version}
    if document.identity:
        fields["identity"] = document.identity
    return fields


def _tail_to_json(document: Document) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if document.slots:
        fields["slots"] = {
            tier: {str(shard): format_slots(slots) for shard, slots in sorted(held.items())}
            for tier, held in sorted(document.slots.items())
        }
    return fields | dict(document.unknown)


def _namespace_to_json(namespace: NamespaceRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if namespace.tier is not None:
        fields["tier"] = namespace.tier
    settings = {**namespace.settings, **namespace.unknown.get(_SETTINGS, {})}
    if settings:
        fields[_SETTINGS] = dict(sorted(settings.items()))
    if namespace.grants:
        fields["grants"] = {
            principal: [permission.name.lower() for permission in sorted(permissions)]
            for principal, permissions in sorted(namespace.grants.items())
        }
    if namespace.paused:
        fields["paused"] = sorted(namespace.paused)
    if namespace.deleting is not None:
        fields["deleting"] = sorted(namespace.deleting)
    if namespace.incarnation:
        fields["incarnation"] = namespace.incarnation
    if namespace.queues:
        fields["queues"] = {name: _queue_to_json(queue) for name, queue in sorted(namespace.queues.items())}
    if namespace.policies:
        fields["policies"] = {topic: _policy_to_json(policy) for topic, policy in sorted(namespace.policies.items())}
    fields.update({name: value for name, value in namespace.unknown.items() if name != _SETTINGS})
    return fields


def _policy_to_json(policy: PolicyRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if policy.group_leases_max is not None:
        fields["group_leases_max"] = policy.group_leases_max
    if policy.fair is not None:
        fields["fair"] = policy.fair.value
    if policy.weights:
        fields["weights"] = dict(sorted(policy.weights.items()))
    if policy.is_relaxed:
        fields["order"] = RELAXED
    fields.update(policy.unknown)
    return fields


def _queue_to_json(queue: QueueEntry) -> dict[str, Any]:
    fields: dict[str, Any] = {"created_at_s": queue.created_at_s, "changed_at_s": queue.changed_at_s}
    if queue.attributes:
        fields["attributes"] = dict(sorted(queue.attributes.items()))
    if queue.tags:
        fields["tags"] = dict(sorted(queue.tags.items()))
    if queue.key_window_ms is not None:
        fields["key_window_ms"] = queue.key_window_ms
    if queue.keys_in_topic:
        fields["keys_in_topic"] = True
    if queue.keys_alone:
        fields["keys_alone"] = True
    if queue.keys_since_ms:
        fields["keys_since_ms"] = queue.keys_since_ms
    if queue.is_fair:
        fields["is_fair"] = True
    fields.update(queue.unknown)
    return fields


# ----------------------------------------------------------------- from JSON


def _check_name(text: str) -> str:
    try:
        return validation.decode_name(text.encode("utf-8", "surrogatepass"), "")
    except FoqsError as error:
        raise ValueError(f"{abbreviate(text)} is not a name: {error.message}") from None


def _parse_permission(name: Any) -> Permission:
    if not isinstance(name, str) or name not in _PERMISSIONS:
        raise ValueError(f"{abbreviate(name)} is not a permission; use {', '.join(_PERMISSIONS)}")
    return _PERMISSIONS[name]


def _parse_fairness(name: Any) -> Fairness:
    if not isinstance(name, str) or name not in _FAIRNESSES:
        raise ValueError(f"{abbreviate(name)} is nothing that groups share; use {' or '.join(_FAIRNESSES)}")
    return _FAIRNESSES[name]


def _check_grant(permissions: frozenset[Permission]) -> frozenset[Permission]:
    if not permissions:
        raise ValueError("this grants nothing; leave the principal out")
    return permissions


def _parse_slots(text: Any) -> range:
    try:
        return parse_slot_range(text if isinstance(text, str) else "")
    except ValueError as error:
        raise ValueError(f"{abbreviate(text)} names no slots: {error}") from None


def _settings_schema(*_: Any) -> core_schema.CoreSchema:
    numbers = {
        name: core_schema.int_schema(strict=True, ge=low, le=high) for name, (low, high) in SETTING_RANGES.items()
    }
    fields = {name: core_schema.typed_dict_field(number, required=False) for name, number in numbers.items()}
    return core_schema.typed_dict_schema(fields, strict=True, extra_behavior="allow")


_PERMISSIONS: Final = {permission.name.lower(): permission for permission in Permission}
_FAIRNESSES: Final = {fairness.value: fairness for fairness in Fairness}
_Name = Annotated[str, AfterValidator(_check_name)]
_Shard = Annotated[int, Field(ge=0, le=SHARD_MAX)]
_Settings = Annotated[dict[str, Any], GetPydanticSchema(_settings_schema)]
_Grant = Annotated[
    frozenset[Annotated[Permission, PlainValidator(_parse_permission)]],
    Field(strict=False),
    AfterValidator(_check_grant),
]
_Slots = Annotated[
    list[Annotated[range, PlainValidator(_parse_slots)]],
    AfterValidator(lambda ranges: frozenset(slot for part in ranges for slot in part)),
]


_KEY_WINDOW_MS: Final = SETTING_RANGES["key_window_ms"]
_Seconds = Annotated[int, Field(ge=0, le=TIME_S_MAX)]


class _QueueForm(Form):
    attributes: dict[str, str] = Field(default_factory=dict)
    tags: dict[str, str] = Field(default_factory=dict)
    created_at_s: _Seconds = 0
    changed_at_s: _Seconds = 0
    key_window_ms: Annotated[int, Field(ge=_KEY_WINDOW_MS[0], le=_KEY_WINDOW_MS[1])] | None = None
    keys_in_topic: bool = False
    keys_alone: bool = False
    keys_since_ms: Annotated[int, Field(ge=0, le=TIME_S_MAX * 1_000)] = 0
    is_fair: bool = False


class _PolicyForm(Form):
    group_leases_max: Annotated[int, Field(ge=1, le=GROUP_LEASES_MAX)] | None = None
    fair: Annotated[Fairness, PlainValidator(_parse_fairness)] | None = None
    weights: Annotated[dict[_Name, Annotated[int, Field(ge=1, le=WEIGHT_MAX)]], Field(max_length=WEIGHTS_MAX)] = Field(
        default_factory=dict
    )
    order: Literal["relaxed"] | None = None


def _build_policy(unknown: Unknown, order: str | None = None, **fields: Any) -> PolicyRecord:
    policy = PolicyRecord(is_relaxed=order == RELAXED, unknown=unknown, **fields)
    if policy.weights and policy.fair is None:
        raise ValueError("only groups of a fair topic have weights; give fair, or leave the weights out")
    return policy


class _NamespaceForm(Form):
    tier: _Name | None = None
    settings: _Settings = Field(default_factory=dict)
    grants: dict[_Name, _Grant] = Field(default_factory=dict)
    paused: Annotated[frozenset[_Name], Field(strict=False)] = frozenset()
    deleting: Annotated[frozenset[_Shard], Field(strict=False)] | None = None
    incarnation: Annotated[int, Field(ge=0, le=INCARNATION_MAX)] = 0
    queues: dict[_Name, Annotated[_QueueForm, build_with_unknown(QueueEntry)]] = Field(default_factory=dict)
    policies: dict[_Name, Annotated[_PolicyForm, build_with_unknown(_build_policy)]] = Field(default_factory=dict)


def _build_namespace(settings: Mapping[str, Any], unknown: Unknown, **fields: Any) -> NamespaceRecord:
    newer = {name: value for name, value in settings.items() if name not in SETTING_RANGES}
    known = {name: value for name, value in settings.items() if name in SETTING_RANGES}
    return NamespaceRecord(settings=known, unknown={**unknown, **({_SETTINGS: newer} if newer else {})}, **fields)


class _DocumentForm(Form):
    version: Annotated[int, Field(ge=0, le=VERSION_MAX)]
    namespaces: dict[_Name, Annotated[_NamespaceForm, build_with_unknown(_build_namespace)]]
    slots: dict[_Name, dict[Annotated[int, number_key(SHARD_MAX)], _Slots]] = Field(default_factory=dict)
    identity: Annotated[int, Field(ge=0, le=IDENTITY_MAX)] = 0


def parse(text: str | bytes, *, allow_unknown: bool = True) -> Document:
    """Parse a document from JSON.

    Args:
        allow_unknown: accept and keep fields that this version does not know.

    Raises:
        MalformedDocument: names the place that is wrong.
    """
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    form = parse_document(_DocumentForm, raw, FORMAT_VERSION, allow_unknown=allow_unknown, newest=FORMAT_MAX)
    document = Document(**vars(form), unknown=form.unknown)
    for tier, assignment in document.slots.items():
        _check_slots_are_disjoint(tier, assignment)
    return document


def unknown_fields(document: Document) -> list[str]:
    """Return the paths of the fields that this version does not know."""
    paths = list(document.unknown)
    for name, namespace in document.namespaces.items():
        for field_name, value in namespace.unknown.items():
            path = f"namespaces.{name}.{field_name}"
            paths += [f"{path}.{setting}" for setting in value] if field_name == _SETTINGS else [path]
    return paths


def _check_slots_are_disjoint(tier: str, assignment: SlotAssignment) -> None:
    before: dict[int, frozenset[int]] = {}
    assigned: set[int] = set()
    for shard, slots in assignment.items():
        if not assigned.isdisjoint(slots):  # else spares the comparison with each shard
            try:
                with_slots(before, shard, slots)
            except SlotConflict as error:
                raise MalformedDocument(f"slots.{tier}.{shard}", f"{error}; give each slot to one shard") from None
        before[shard] = slots
        assigned |= slots
