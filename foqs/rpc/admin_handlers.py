"""The administrative calls about namespaces: from a decoded request to a reply.

Holds one function for each call. Always true: the administration gets validated
names only; the cursor of a list is the last name of the page before. Knows nothing
of connections or of how changes are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from foqs.catalog.administration import Administration
from foqs.catalog.document import NamespaceRecord, Permission
from foqs.catalog.namespace_settings import SETTING_RANGES
from foqs.core.items import validation
from foqs.rpc.call import Call, Handler
from foqs.rpc.filters import page_by_name, requested_shards
from foqs.rpc.methods import task_handler
from foqs.rpc.request_structs import with_path
from foqs.rpc.topic_policies import parse_policy, policy_struct
from foqs_contract.errors import InvalidArgument
from foqs_contract.idl import ttypes
from foqs_contract.request import RequestOfNamespace

_T = TypeVar("_T")

CLOCK_DIFFERENCE_MS_MAX: Final = 60_000
"""How far the clock of this host may be ahead of a shard's, so that the shard accepts the end of a key that it names."""
USAGE_TOPIC_NAMES_MAX: Final = 10_000
"""The most names of a namespace's topics that other hosts get."""


def admin_handlers(admin: Administration, tier: str, wall_ms: Callable[[], float]) -> Mapping[str, Handler]:
    """Return the handlers by method name; `tier` is the host's own, the only one that it serves."""
    handlers = _AdminHandlers(admin, tier, wall_ms)
    served: Mapping[str, Callable[[Call], Coroutine[Any, Any, Any]]] = {
        "createNamespace": handlers.create_namespace,
        "updateNamespace": handlers.update_namespace,
        "getNamespace": handlers.get_namespace,
        "listNamespaces": handlers.list_namespaces,
        "deleteNamespace": handlers.delete_namespace,
        "getUsage": handlers.get_usage,
        "setGrant": handlers.set_grant,
        "listGrants": handlers.list_grants,
        "pauseTopic": handlers.pause_topic,
        "resumeTopic": handlers.resume_topic,
        "setTopicPolicy": handlers.set_topic_policy,
        "listTopicPolicies": handlers.list_topic_policies,
        "exportConfig": handlers.export_config,
        "importConfig": handlers.import_config,
    }
    return {name: task_handler(serve) for name, serve in served.items()}


class _AdminHandlers:
    def __init__(self, admin: Administration, tier: str, wall_ms: Callable[[], float]) -> None:
        self._admin = admin
        self._tier = tier
        self._wall_ms = wall_ms

    async def create_namespace(self, call: Call) -> ttypes.NamespaceSettings:
        name, tier, settings = self._parse_settings(call.request)
        return self._settings_struct(name, await self._admin.create(name, tier, settings, call.deadline))

    async def update_namespace(self, call: Call) -> ttypes.NamespaceSettings:
        name, tier, settings = self._parse_settings(call.request)
        return self._settings_struct(name, await self._admin.update(name, tier, settings, call.deadline))

    async def get_namespace(self, call: Call) -> ttypes.NamespaceSettings:
        name = _namespace_name(call.request)
        found = self._admin.namespace(name)
        reply = self._settings_struct(name, found)
        window_ms = self._admin.settings(found)["key_window_ms"]
        reply.keys_until_ms = int(self._wall_ms()) + window_ms - CLOCK_DIFFERENCE_MS_MAX
        reply.incarnation = self._admin.document().incarnation_number(name)
        return reply

    async def list_namespaces(self, call: Call) -> ttypes.NamespacesReply:
        request: ttypes.ListRequest = call.request
        namespaces = self._admin.document().namespaces
        names, cursor = page_by_name(sorted(namespaces), str, request.page)
        return ttypes.NamespacesReply([self._settings_struct(name, namespaces[name]) for name in names], cursor)

    async def delete_namespace(self, call: Call) -> ttypes.DoneReply:
        await self._admin.delete(_namespace_name(call.request), call.deadline)
        return ttypes.DoneReply()

    async def get_usage(self, call: Call) -> ttypes.UsageReply:
        request: ttypes.NamespaceRequest = call.request
        usage = self._admin.usage(_namespace_name(request), requested_shards(request))
        with_names = request.forwarded and len(usage.topics) <= USAGE_TOPIC_NAMES_MAX
        return ttypes.UsageReply(
            items=usage.items,
            bytes=usage.payload_bytes,
            topics=len(usage.topics),
            enqueues_last_minute=usage.enqueues_last_minute,
            topic_names=sorted(usage.topics) if with_names else None,
        )

    async def set_grant(self, call: Call) -> ttypes.DoneReply:
        request: ttypes.GrantRequest = call.request
        grant = _required(request.grant, "grant", "name the principal, the namespace and the permissions")
        try:
            name = validation.decode_name(grant.namespace_name, "namespace_name")
            principal = validation.decode_name(grant.principal, "principal")
            values = enumerate(
                _required(grant.permissions, "permissions", "give a list; an empty one removes the grant")
            )
            permissions = frozenset(_parse_permission(value, f"permissions[{place}]") for place, value in values)
        except InvalidArgument as error:
            raise with_path("grant", error) from None
        await self._admin.grant(name, principal, permissions, call.deadline, is_administrator=_is_administrator(call))
        return ttypes.DoneReply()

    async def list_grants(self, call: Call) -> ttypes.GrantsReply:
        name = _namespace_name(call.request)
        grants = self._admin.namespace(name).grants
        return ttypes.GrantsReply(
            [ttypes.Grant(principal, name, sorted(map(int, grants[principal]))) for principal in sorted(grants)], None
        )

    async def pause_topic(self, call: Call) -> ttypes.DoneReply:
        return await self._pause(call, paused=True)

    async def resume_topic(self, call: Call) -> ttypes.DoneReply:
        return await self._pause(call, paused=False)

    async def _pause(self, call: Call, *, paused: bool) -> ttypes.DoneReply:
        request: ttypes.TopicRequest = call.request
        name, topic = _namespace_name(request), validation.decode_name(request.topic, "topic")
        await self._admin.pause(name, topic, call.deadline, paused=paused, is_administrator=_is_administrator(call))
        return ttypes.DoneReply()

    async def set_topic_policy(self, call: Call) -> ttypes.DoneReply:
        request: ttypes.SetTopicPolicyRequest = call.request
        name = _namespace_name(request)
        policy = _required(
            request.policy, "policy", "name the topic and its rules; without a rule the policy is removed"
        )
        try:
            topic = validation.decode_name(policy.topic, "topic")
        except InvalidArgument as error:
            raise with_path("policy", error) from None
        await self._admin.set_policy(
            name, topic, parse_policy(policy), call.deadline, is_administrator=_is_administrator(call)
        )
        return ttypes.DoneReply()

    async def list_topic_policies(self, call: Call) -> ttypes.TopicPoliciesReply:
        policies = self._admin.namespace(_namespace_name(call.request)).policies
        return ttypes.TopicPoliciesReply([policy_struct(topic, policy) for topic, policy in sorted(policies.items())])

    async def export_config(self, call: Call) -> ttypes.ConfigDocument:
        return ttypes.ConfigDocument(self._admin.export())

    async def import_config(self, call: Call) -> ttypes.DoneReply:
        request: ttypes.ConfigDocument = call.request
        text = validation.decode_text(
            _required(request.json, "json", "give a document of exportConfig"), _TEXT_BYTES_MAX, "json"
        )
        await self._admin.restore(text, call.deadline)
        return ttypes.DoneReply()

    # ----------------------------------------------------------------- structs

    def _parse_settings(self, request: ttypes.SetNamespaceRequest) -> tuple[str, str | None, dict[str, int]]:
        """Return (name, tier, settings that the request has). Raises InvalidArgument."""
        raw = _required(request.settings, "settings", "name the namespace in it")
        name = validation.decode_name(raw.name, "settings.name")
        tier = None
        if raw.tier is not None:
            tier = validation.decode_name(raw.tier, "settings.tier")
            if tier != self._tier:
                raise InvalidArgument(
                    f"this host is of tier {self._tier!r}; ask a host of that tier", field="settings.tier"
                )
        return name, tier, {key: value for key in SETTING_RANGES if (value := getattr(raw, key)) is not None}

    def _settings_struct(self, name: str, namespace: NamespaceRecord) -> ttypes.NamespaceSettings:
        return ttypes.NamespaceSettings(name=name, tier=namespace.tier or self._tier, **self._admin.settings(namespace))


_TEXT_BYTES_MAX: Final = 1 << 26


def _is_administrator(call: Call) -> bool:
    """Return whether the call is that of an administrator of the whole system. A host that does not authenticate knows none."""
    return call.principal is not None and call.principal.is_admin


def _namespace_name(request: RequestOfNamespace) -> str:
    return validation.decode_name(request.namespace_name, "namespace_name")


def _required(value: _T | None, field: str, remedy: str) -> _T:
    if value is None:
        raise InvalidArgument(f"this is missing; {remedy}", field=field)
    return value


def _parse_permission(value: int, field: str) -> Permission:
    try:
        return Permission(value)
    except ValueError:
        known = ", ".join(f"{each.value} ({each.name})" for each in Permission)
        raise InvalidArgument(f"{value} is not a permission; use one of {known}", field=field) from None
