"""One request of a principal, as the pages need it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

from aiohttp import web
from multidict import MultiMapping

from foqs.access.authenticator import AuthenticatedPrincipal
from foqs.access.call_permissions import PermissionLookup, denial
from foqs.catalog.changes import namespace_not_found
from foqs.console.local_clients import LocalClients
from foqs.console.shared_figures import SharedFigures
from foqs.console.site import Site
from foqs_client import Client, InvalidArgument, PermissionDenied
from foqs_contract.call_table import CALLS, Permission
from foqs_contract.plurals import counted


@dataclass(slots=True, frozen=True)
class PagePermissions:
    """The permissions of a principal on the pages. `authenticated` is None without authentication; then everything is allowed.

    A page leaves out what is not allowed. The host checks each call all the same.
    """

    authenticated: AuthenticatedPrincipal | None
    permissions_of: PermissionLookup

    @property
    def principal_name(self) -> str | None:
        """The name of the principal; None without authentication."""
        return None if self.authenticated is None else self.authenticated.principal.name

    @property
    def is_admin(self) -> bool:
        """Whether the principal may do everything."""
        return self.authenticated is None or self.authenticated.principal.is_admin

    def on(self, namespace: str) -> Collection[int]:
        """Return the permissions on a namespace."""
        if self.authenticated is None or self.is_admin:
            return tuple(Permission)
        return self.permissions_of(self.authenticated.principal.name, namespace)

    def refusal(self, call: str, namespace: str) -> PermissionDenied | None:
        """Return the error if the host would refuse this call of the contract; None if it is allowed."""
        if self.authenticated is None:
            return None
        return denial(CALLS[call].requirement, self.authenticated.principal, self.on(namespace))

    def may_see(self, namespace: str) -> bool:
        """Whether the namespace may be shown."""
        return self.is_admin or bool(self.on(namespace))

    def may_administer(self, namespace: str) -> bool:
        return Permission.ADMIN in self.on(namespace)

    def may_consume(self, namespace: str) -> bool:
        return Permission.CONSUME in self.on(namespace)

    def may_enqueue(self, namespace: str) -> bool:
        return Permission.ENQUEUE in self.on(namespace)

    def may_read(self, namespace: str) -> bool:
        """Whether items may be shown."""
        return self.may_consume(namespace) or self.may_administer(namespace)


@dataclass(slots=True)
class PageRequest:
    """A request with its principal. Within a `with` block it may make calls.

    Attributes:
        path: the path of the page, without the prefix of the site.
        values: the fields of the address (GET) or of the form (POST).
        shared: the figures that all pages share.
        namespaces: the names of the namespaces on which the principal has a permission, in order.
        namespace: the chosen one; empty if there is none.

    Raises:
        NamespaceNotFound: an administrator names a namespace that does not exist.
        PermissionDenied: the principal has no permission on the namespace. So there are no clients of invented names.
    """

    request: web.Request
    permissions: PagePermissions
    values: MultiMapping[str]
    clients: LocalClients
    shared: SharedFigures
    namespaces: list[str]
    render: Callable[..., web.Response]
    site: Site
    path: str = field(init=False)
    namespace: str = field(init=False)
    _client: Client | None = field(init=False, default=None)
    _held: ExitStack = field(init=False, default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.path = self.site.path(self.request.path) or "/"
        asked = self.values.get("namespace") or self.request.query.get("namespace")
        usual = "default" if "default" in self.namespaces or not self.namespaces else self.namespaces[0]
        self.namespace = asked or usual
        if self.namespace != usual and self.namespace not in self.namespaces:
            if self.permissions.is_admin:
                raise namespace_not_found(self.namespace)
            raise PermissionDenied(
                "you have no permission on this namespace; a principal with ADMIN on it can grant one"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        self._client = None

    @property
    def client(self) -> Client:
        """The client of the principal in the namespace, until the page request ends."""
        if self._client is None:
            self._client = self._held.enter_context(self.use_client())
        return self._client

    def use_client(self) -> AbstractContextManager[Client]:
        """Return the client of the principal in the namespace for a read that other pages share."""
        # Only what a form does is noted with an address. Pages share a client, wherever their browsers are.
        address = self.site.browser_address(self.request) if self.request.method == "POST" else ""
        return self.clients.use(self.permissions.authenticated, self.namespace, address)

    def text(self, name: str, default: str = "") -> str:
        """Return a field without the spaces around it."""
        return self.values.get(name, default).strip()

    def require(self, name: str) -> str:
        """Return a field that must not be empty. It is returned exactly. Raises InvalidArgument."""
        value = self.values.get(name, "")
        if not value:
            raise InvalidArgument("this is missing; fill it in", field=name)
        return value

    def number(self, name: str) -> int | None:
        """Return an integer field; None if it is empty. Raises InvalidArgument."""
        text = self.text(name)
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise InvalidArgument(f"{text!r} is not a whole number; write digits only", field=name) from None

    def page(self, template: str, title: str, **values: Any) -> web.Response:
        """Return the reply with a page, drawn from this template with these values."""
        return self.render(template, page_request=self, title=title, **values)

    def see(self, path: str, *, done: str = "", **fields: Any) -> NoReturn:
        """End a POST: the browser gets this page next, which says what was done. Always raises."""
        raise web.HTTPSeeOther(self.site.link(path, **{"namespace": self.namespace, **fields, "done": done}))


def done_sentence(values: Mapping[str, str]) -> str | None:
    """Return the sentence that a page shows after an action; the address has only its name and a number."""
    sentence = _DONE.get(values.get("done", ""))
    if sentence is None:
        return None
    count = values.get("count", "")
    items = int(count) if count.isascii() and count.isdigit() and len(count) < 16 else 0
    return sentence.format(
        items_were=counted(items, "item was", "items were"), items_are=counted(items, "item is", "items are")
    )


_DONE: Mapping[str, str] = {
    "paused": "The topic is paused: nothing of it is delivered until you resume it.",
    "resumed": "The topic is delivered again.",
    "purged": "{items_were} deleted, as far as counted.",
    "cancelled": "The item is deleted.",
    "already_gone": "The item was gone already.",
    "updated": "The item is changed.",
    "extended": "The lease is extended, unless it lasted longer already.",
    "redriven": "The item is ready again.",
    "redriven_many": "{items_are} ready again.",
    "enqueued": "The item is enqueued.",
    "draining": "The host hands its shards over to others.",
    "undrained": "The host may own shards again.",
    "moving_shard": "The shard is being handed over.",
    "drained_shard": "The shard accepts no new items.",
    "undrained_shard": "The shard accepts new items.",
    "updated_namespace": "The settings are changed.",
    "created_namespace": "The namespace is created.",
    "granted": "The grant is changed.",
}
