"""The layer that serves each call in a tier, by the route in its row.

Always true: every route has a part, so a call is never served by one host alone where it
needs others; a call that a peer has forwarded is served by this host alone, so no call is
forwarded twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from foqs.rpc.call import Handler, Layer, ServerMethod
from foqs.rpc.methods import unforwarded
from foqs_contract.call_table import Route

LOCAL_ROUTES: Mapping[Route, Layer] = dict.fromkeys((Route.HERE, Route.ANY, Route.REPORTED), unforwarded)
"""The routes of the calls that the called host answers by itself."""


def tier_layer(forwarding: Mapping[Route, Layer]) -> Layer:
    """Return the layer of a host of a tier. Raises ValueError if a route has no part.

    Args:
        forwarding: the layer of each route that needs other hosts, as `TierMember` makes them; `LOCAL_ROUTES` are added.
    """
    routes = {**LOCAL_ROUTES, **forwarding}
    missing = [route.name for route in Route if route not in routes]
    if missing:
        raise ValueError(f"no part of the tier serves calls with the route {', '.join(missing)}; add it to the tier's")

    def layer(method: ServerMethod) -> Handler:
        return routes[method.row.route](method)

    return layer
