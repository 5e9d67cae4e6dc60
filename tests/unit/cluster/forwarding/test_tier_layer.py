"""A call that no part of the tier serves keeps a host from starting, with a sentence that says what to add."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foqs.cluster.forwarding.all_hosts import AllHosts
from foqs.cluster.forwarding.enqueues import EnqueueForwarder
from foqs.cluster.forwarding.scatter_gather import ScatterGather
from foqs.cluster.forwarding.tier_layer import LOCAL_ROUTES, tier_layer
from foqs.rpc.call import Layer
from foqs.rpc.methods import contract_methods, unforwarded
from foqs_contract.call_table import Route

NOTHING: Any = None
METHOD = contract_methods({})[b"peek"]


def test_route_without_a_part_is_named() -> None:
    served = dict.fromkeys(set(Route) - {*LOCAL_ROUTES, Route.BY_ID}, unforwarded)
    with pytest.raises(ValueError, match="no part of the tier serves calls with the route BY_ID"):
        tier_layer(served)
    assert tier_layer({**served, Route.BY_ID: unforwarded})(METHOD) is METHOD.handle


@pytest.mark.parametrize(
    ("layer", "remedy"),
    [
        (ScatterGather(NOTHING, NOTHING, 1).layer, "the call touch goes to all shards"),
        (AllHosts(NOTHING).layer, "the call touch goes to all hosts"),
        (EnqueueForwarder(NOTHING).layer, "which items of the call touch have a key slot"),
    ],
)
def test_call_that_its_part_does_not_know_is_named(layer: Layer, remedy: str) -> None:
    unknown = replace(METHOD, row=replace(METHOD.row, name="touch"))
    with pytest.raises(ValueError, match=remedy):
        layer(unknown)
