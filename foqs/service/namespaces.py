"""What holds for each namespace now: the catalog's document, resolved with the host's defaults.

Always true: everything here follows from one version of the document, which
`apply` replaces in one turn of the loop; so whoever asks each time sees a change
at once. A namespace that is being deleted takes in no call. Items of a
namespace that is not there any more are treated by the defaults. Knows nothing
of where the document comes from.
"""

from __future__ import annotations

from dataclasses import replace

from foqs.catalog.changes import no_namespace
from foqs.catalog.document import EMPTY, Document, Permission
from foqs.core.budget import Longest
from foqs.core.errors import FoqsError, InvalidArgument, Unavailable
from foqs.core.item import TopicName
from foqs.core.keys import incarnation_mark
from foqs.core.life import Policy
from foqs.service.api import NamespaceSettings

_NONE: frozenset[Permission] = frozenset()


class _Policies(dict[str, Policy]):
    """Policies by namespace, with an answer for every name."""

    def __init__(self, default: Policy) -> None:
        super().__init__()
        self._default = default

    def __missing__(self, name: str) -> Policy:
        return self._default


def _policy(settings: NamespaceSettings) -> Policy:
    return Policy(
        settings.backoff_ms_min,
        settings.backoff_ms_max,
        settings.dead_retention_ms,
        settings.key_window_ms,
        settings.incarnation,
    )


class Namespaces:
    """The live view.

    Args:
        default: what a namespace has that it does not set.
        tier: of this host.

    Attributes:
        document: the version that all of it follows from.
        policies: by namespace; has an answer for every name.
        paused: topics that hand nothing out.
        longest: the longest payloads that are known of each.
        elsewhere: the tier of those that belong to another one. This host takes in no item of theirs; what it holds of
            them, from before the tier was recorded, is handed out.
        limited: the settings of those whose enqueues are limited by what they enqueued before.
    """

    def __init__(self, default: NamespaceSettings, tier: str = "default") -> None:
        self.default = default
        self.document = EMPTY
        self.policies: dict[str, Policy] = _Policies(_policy(default))
        self.paused: frozenset[TopicName] = frozenset()
        self.limited: dict[str, NamespaceSettings] = {}
        self.longest = Longest()
        self.elsewhere: dict[str, str] = {}
        self._tier = tier
        self._settings: dict[str, NamespaceSettings] = {}
        self._closed: set[str] = set()

    def of(self, name: str) -> NamespaceSettings:
        """What holds for a namespace's items. Raises `NamespaceNotFound`, `Unavailable`."""
        settings = self._settings.get(name)
        if settings is None:
            raise self._missing(name)
        return settings

    def _missing(self, name: str) -> FoqsError:
        if name in self._closed or name in self.document.namespaces:
            return Unavailable(f"the namespace {name!r} is being deleted", retry_after_ms=200)
        if not self.document.version:
            return Unavailable("the host has not read its namespaces yet; try again", retry_after_ms=200)
        return no_namespace(name)

    def check_tier(self, name: str) -> None:
        """This host may take in items of a namespace. Raises `InvalidArgument`: its hosts are others."""
        if name in self.elsewhere:
            raise InvalidArgument(
                f"the namespace {name!r} belongs to tier {self.elsewhere[name]!r}, and this host to {self._tier!r}; "
                "connect to a host of its tier",
                field="namespace_name",
            )

    def deleting(self) -> list[str]:
        """Those that are being deleted, by all hosts."""
        return [name for name, own in self.document.namespaces.items() if own.deleting is not None]

    def weight(self, name: str) -> int:
        """Its part of what is short, at least 1."""
        settings = self._settings.get(name)
        return 1 if settings is None else settings.weight

    def permissions(self, principal: str, name: str) -> frozenset[Permission]:
        """What a principal may do in a namespace."""
        namespace = self.document.namespaces.get(name)
        return _NONE if namespace is None else namespace.grants.get(principal, _NONE)

    def apply(self, document: Document) -> frozenset[TopicName]:
        """From now on this holds. Returns the topics that are paused no longer."""
        self.document = document
        namespaces = document.namespaces
        settings = {
            name: replace(self.default, **own.settings, incarnation=incarnation_mark(own.incarnation))
            for name, own in namespaces.items()
        }
        # Never empty, not for a moment: a flush on SQLite is judged in a thread of its own.
        self.policies.update({name: _policy(own) for name, own in settings.items()})
        for name in [name for name in self.policies if name not in settings]:
            del self.policies[name]
            self.longest.forget(name)
        for name, former in self._settings.items():
            if name in settings and settings[name].payload_bytes_max < former.payload_bytes_max:
                self.longest.saw(name, former.payload_bytes_max)
        self._settings = {
            name: own
            for name, own in settings.items()
            if name not in self._closed and namespaces[name].deleting is None
        }
        self.limited = {name: own for name, own in settings.items() if own.is_limited}
        self.elsewhere = {
            name: own.tier for name, own in namespaces.items() if own.tier is not None and own.tier != self._tier
        }
        before = self.paused
        self.paused = frozenset((name, topic) for name, own in namespaces.items() for topic in own.paused)
        return before - self.paused

    def close(self, name: str) -> None:
        """No further call is taken in for it, until `reopen`."""
        self._closed.add(name)
        self._settings.pop(name, None)

    def reopen(self, name: str) -> None:
        """Calls are taken in again, where it is still there."""
        self._closed.discard(name)
        self.apply(self.document)
