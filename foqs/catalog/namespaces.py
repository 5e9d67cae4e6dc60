"""The namespaces as they are now: the catalog's document with the host's defaults.

Always true: all fields follow from one version of the document, which `apply`
replaces in one step of the event loop. A namespace that is being deleted accepts
no call. Items of a namespace that no longer exists are treated by the defaults.
Knows nothing of where the document comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from foqs.catalog.changes import namespace_not_found
from foqs.catalog.document import EMPTY_DOCUMENT, Document, NamespaceRecord, Permission
from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.catalog.topic_keys import NO_TOPIC_KEYS, TopicKeys, topic_keys
from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.items.idempotency_keys import incarnation_prefix
from foqs.core.items.item import TopicName
from foqs.core.items.life import RetryPolicy
from foqs.core.memory.reservations import LongestPayloads
from foqs.options.options import NamespaceOptions
from foqs_contract.errors import FoqsError, InvalidArgument, Unavailable

FAIR_QUEUE: Final = GroupRules(fair=Fairness.TIME)
"""The rules of the topic of a fair queue."""
_NO_PERMISSIONS: frozenset[Permission] = frozenset()
_NO_WINDOWS: Mapping[str, int] = {}


class _RetryPolicies(dict[str, RetryPolicy]):
    """The retry policies by namespace; a namespace that is missing has the default policy."""

    def __init__(self, default_policy: RetryPolicy) -> None:
        super().__init__()
        self._default_policy = default_policy

    def __missing__(self, name: str) -> RetryPolicy:
        return self._default_policy


def _retry_policy(settings: NamespaceSettings, topic_key_windows_ms: Mapping[str, int] = _NO_WINDOWS) -> RetryPolicy:
    return RetryPolicy(
        settings.backoff_ms_min,
        settings.backoff_ms_max,
        settings.dead_retention_ms,
        settings.key_window_ms,
        settings.incarnation,
        topic_key_windows_ms,
    )


def _topic_key_windows(namespace: NamespaceRecord) -> Mapping[str, int]:
    windows = ((topic, queue.key_window_ms) for topic, queue in namespace.queues.items())
    return {topic: window_ms for topic, window_ms in windows if window_ms is not None}


class Namespaces:
    """The namespaces of the catalog, with the settings that apply to them at this host.

    Args:
        default_options: the settings that apply to a namespace unless it has its own.
        tier: the tier of this host.

    Attributes:
        document: the version that all fields follow from.
        retry_policies: by namespace; every name has one.
        paused_topics: topics that are not delivered.
        group_rules: of topics whose policy has rules for groups, and of fair queues. The same object until one changes.
        relaxed_topics: topics whose items a host delivers though a peer has better ones.
        longest_payloads: the longest known payload of each namespace.
        foreign_tiers: the tier of each namespace of another tier. This host accepts no items of them; it delivers
            those that it holds from before the tier was recorded.
        limited_settings: the settings of the namespaces with a limit on rate, backlog or topics.
    """

    def __init__(self, default_options: NamespaceOptions, tier: str = "default") -> None:
        self.default_settings = NamespaceSettings.model_construct(**default_options.model_dump())
        self.document = EMPTY_DOCUMENT
        self.retry_policies: dict[str, RetryPolicy] = _RetryPolicies(_retry_policy(self.default_settings))
        self.paused_topics: frozenset[TopicName] = frozenset()
        self.group_rules: Mapping[TopicName, GroupRules] = {}
        self.relaxed_topics: frozenset[TopicName] = frozenset()
        self.limited_settings: dict[str, NamespaceSettings] = {}
        self.longest_payloads = LongestPayloads()
        self.foreign_tiers: dict[str, str] = {}
        self.tier = tier
        self._settings: dict[str, NamespaceSettings] = {}
        self._resolved: dict[str, tuple[NamespaceRecord, NamespaceSettings, TopicKeys]] = {}
        """What follows from the record of each namespace. A change resolves only the namespace that it changes."""
        self._closed_names: set[str] = set()

    def settings_of(self, name: str) -> NamespaceSettings:
        """Return the settings of a namespace: one object until they change. Raises `NamespaceNotFound`, `Unavailable`."""
        settings = self._settings.get(name)
        if settings is None:
            raise self._missing_error(name)
        return settings

    def topic_keys_of(self, name: str) -> TopicKeys:
        """Return what the queues of a namespace say of the idempotency keys of their topics."""
        found = self._resolved.get(name)
        return NO_TOPIC_KEYS if found is None else found[2]

    def is_current(self, name: str, settings: NamespaceSettings) -> bool:
        """Return whether the namespace still has these settings, and was not deleted meanwhile."""
        return self._settings.get(name) is settings

    def _missing_error(self, name: str) -> FoqsError:
        if name in self.document.namespaces:
            return Unavailable(f"the namespace {name!r} is being deleted; try again", retry_after_ms=200)
        if not self.document.version:
            return Unavailable("the host has not read its namespaces yet; try again", retry_after_ms=200)
        return namespace_not_found(name)

    def check_tier(self, name: str) -> None:
        """Check that this host may accept items of a namespace. Raises `InvalidArgument` if it is of another tier."""
        if name in self.foreign_tiers:
            raise InvalidArgument(
                f"the namespace {name!r} belongs to tier {self.foreign_tiers[name]!r}, but this host to {self.tier!r}; "
                "connect to a host of the namespace's tier",
                field="namespace_name",
            )

    def names_being_deleted(self) -> list[str]:
        """Return the namespaces that are being deleted."""
        return [name for name, own in self.document.namespaces.items() if own.deleting is not None]

    def weight_of(self, name: str) -> int:
        """Return the weight of a namespace when resources are short, at least 1."""
        settings = self._settings.get(name)
        return 1 if settings is None else settings.weight

    def group_leases_max(self, topic: TopicName) -> int | None:
        """Return how many items of one group of a topic may be leased at once; None: any number."""
        rules = self.group_rules.get(topic)
        return None if rules is None else rules.leases_max

    def fairness(self, topic: TopicName) -> Fairness | None:
        """Return what the groups of a topic share by taking turns; None: the topic is not fair."""
        rules = self.group_rules.get(topic)
        return None if rules is None else rules.fair

    def permissions_of(self, principal: str, name: str) -> frozenset[Permission]:
        """Return the permissions of a principal in a namespace."""
        namespace = self.document.namespaces.get(name)
        return _NO_PERMISSIONS if namespace is None else namespace.grants.get(principal, _NO_PERMISSIONS)

    def apply(self, document: Document) -> list[TopicName]:
        """Use this document from now on. Returns the topics that are no longer paused."""
        is_same_catalog = document.identity == self.document.identity
        self.document = document
        namespaces = document.namespaces
        known = self._resolved if is_same_catalog else {}
        self._resolved = {
            name: found
            if (found := known.get(name)) is not None and found[0] is own
            else (own, self._resolve(name), topic_keys(own.queues))
            for name, own in namespaces.items()
        }
        settings = {name: own for name, (_, own, _) in self._resolved.items()}
        # Must never be empty, even for a moment: with SQLite, another thread reads it to judge a flush.
        self.retry_policies.update(
            {
                name: _retry_policy(own, _topic_key_windows(namespaces[name]))
                for name, own in settings.items()
                if name not in known or known[name][1] is not own
            }
        )
        for name in [name for name in self.retry_policies if name not in settings]:
            del self.retry_policies[name]
            self.longest_payloads.forget(name)
        for name, former in self._settings.items():
            if name in settings:
                if settings[name] == former:
                    settings[name] = former
                elif settings[name].payload_bytes_max < former.payload_bytes_max:
                    self.longest_payloads.record(name, former.payload_bytes_max)
        self._settings = {
            name: own
            for name, own in settings.items()
            if name not in self._closed_names and namespaces[name].deleting is None
        }
        self.limited_settings = {name: own for name, own in settings.items() if own.is_limited}
        self.foreign_tiers = {
            name: own.tier for name, own in namespaces.items() if own.tier is not None and own.tier != self.tier
        }
        rules = {(name, topic): own_rules for name, own in namespaces.items() for topic, own_rules in _group_rules(own)}
        if rules != self.group_rules:
            self.group_rules = rules
        self.relaxed_topics = frozenset(
            (name, topic)
            for name, own in namespaces.items()
            for topic, policy in own.policies.items()
            if policy.is_relaxed
        )
        before = self.paused_topics
        self.paused_topics = frozenset((name, topic) for name, own in namespaces.items() for topic in own.paused)
        return sorted(before - self.paused_topics)

    def _resolve(self, name: str) -> NamespaceSettings:
        """Return the settings of a namespace of the document, with the host's defaults for those that it lacks."""
        own = self.document.namespaces[name]
        incarnation = {
            "incarnation": incarnation_prefix(own.incarnation),
            "incarnation_number": self.document.incarnation_number(name),
        }
        return self.default_settings.model_copy(update={**own.settings, **incarnation})

    def close(self, name: str) -> None:
        """Refuse calls of a namespace until `reopen`."""
        self._closed_names.add(name)
        self._settings.pop(name, None)

    def reopen(self, name: str) -> None:
        """Accept calls of a namespace again, if it still exists."""
        self._closed_names.discard(name)
        self.apply(self.document)


def _group_rules(namespace: NamespaceRecord) -> Iterator[tuple[str, GroupRules]]:
    """Yield the topics of a namespace that have rules for groups, and these. A policy with some comes before what a queue says."""
    own = {topic: rules for topic, policy in namespace.policies.items() if (rules := policy.rules) is not None}
    yield from own.items()
    for topic, queue in namespace.queues.items():
        if queue.is_fair and topic not in own:
            yield topic, FAIR_QUEUE
