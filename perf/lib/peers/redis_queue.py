"""Redis as a priority queue: sorted sets and Lua, with every write in the append-only file and fsynced.

Always true: a call is one script, and Redis replies after the fsync of what the
script wrote (`appendfsync always`). Items of a topic are delivered by priority, then
by age. A lease that ended goes back to its topic during the next call that takes.
Knows nothing of how load is offered or timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from foqs.dev.server_process import find_program, give_to_user, run_program, unprivileged_user
from perf.lib.by_hand import EMPTY_PAUSE_S
from perf.lib.caller import NOTHING, Batch, Caller, Put, Taken, all_durable
from perf.lib.payload import filler
from perf.lib.peers.peer import Peer

PAYLOADS: Final = "payload"
"""The hash of all payloads by id. The other keys: `ready:TOPIC`, a sorted set; `leased`, all leases by their ends; `last`."""

# A member is an id of 16 digits, so equal priorities are in the order of their ids.
_PUT: Final = """
local count = #ARGV / 2
local last = redis.call('INCRBY', 'last', count)
local members, payloads = {}, {}
for place = 1, count do
  local id = string.format('%016d', last - count + place)
  local of_topic = members[ARGV[place]]
  if not of_topic then of_topic = {}; members[ARGV[place]] = of_topic end
  of_topic[#of_topic + 1] = 0
  of_topic[#of_topic + 1] = id
  payloads[#payloads + 1] = id
  payloads[#payloads + 1] = ARGV[count + place]
end
for topic, of_topic in pairs(members) do redis.call('ZADD', 'ready:' .. topic, unpack(of_topic)) end
redis.call('HSET', 'payload', unpack(payloads))
"""
# A lease is named id:priority:topic, which is all that its way back needs.
_TAKE: Final = """
local moment = redis.call('TIME')
local now = moment[1] * 1000 + math.floor(moment[2] / 1000)
local ended = redis.call('ZRANGEBYSCORE', 'leased', '-inf', now, 'LIMIT', 0, 1000)
for _, lease in ipairs(ended) do
  local id, priority, topic = string.match(lease, '^(%d+):([^:]+):(.*)$')
  redis.call('ZADD', 'ready:' .. topic, priority, id)
end
if #ended > 0 then redis.call('ZREM', 'leased', unpack(ended)) end
local ids, leases, changes = {}, {}, {}
for place = 2, #ARGV, 2 do
  local found = redis.call('ZPOPMIN', 'ready:' .. ARGV[place], ARGV[place + 1])
  for at = 1, #found, 2 do
    local lease = found[at] .. ':' .. found[at + 1] .. ':' .. ARGV[place]
    ids[#ids + 1] = found[at]
    leases[#leases + 1] = lease
    changes[#changes + 1] = now + ARGV[1]
    changes[#changes + 1] = lease
  end
end
if #ids == 0 then return {{}, {}} end
redis.call('ZADD', 'leased', unpack(changes))
return {leases, redis.call('HMGET', 'payload', unpack(ids))}
"""
# A lease that was given to another caller meanwhile has the same name, but then the work was done here first.
_DONE: Final = """
local ids = {}
for place, lease in ipairs(ARGV) do ids[place] = string.sub(lease, 1, 16) end
redis.call('ZREM', 'leased', unpack(ARGV))
redis.call('HDEL', 'payload', unpack(ids))
"""
_FILL: Final = """
local last = redis.call('INCRBY', 'last', ARGV[2] - ARGV[1])
for start = ARGV[1], ARGV[2] - 1, 1000 do
  local members, payloads = {}, {}
  for number = start, math.min(start + 999, ARGV[2] - 1) do
    local id = string.format('%016d', number + 1)
    members[#members + 1] = 0
    members[#members + 1] = id
    payloads[#payloads + 1] = id
    payloads[#payloads + 1] = string.format('%016d', number) .. ARGV[3]
  end
  redis.call('ZADD', 'ready:t0', unpack(members))
  redis.call('HSET', 'payload', unpack(payloads))
end
"""


class Redis(Peer):
    """Redis in an own folder, on a socket, which fsyncs each write before it replies."""

    name = "redis"

    def __init__(self) -> None:
        super().__init__()
        self.place = str(self.folder / "s")
        self.version = ""

    def set_up(self) -> None:
        program = find_program("redis-server", "redis-server")
        self.version = run_program([program, "--version"]).split("v=")[1].split()[0]
        user = unprivileged_user("redis")
        give_to_user(self.folder, user)
        settings = {
            "port": 0, "unixsocket": self.place, "dir": self.folder, "daemonize": "no", "save": "",
            "appendonly": "yes", "appendfsync": "always",
        }  # fmt: skip
        options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        self.launch([program, *options], self._answers, cwd=self.folder, user=user)

    def _answers(self) -> bool:
        return asyncio.run(self._pings())

    async def _pings(self) -> bool:
        import redis.asyncio
        from redis.exceptions import RedisError

        try:
            async with redis.asyncio.Redis(unix_socket_path=self.place) as client:
                return bool(await client.ping())
        except (RedisError, OSError):
            return False

    def fill(self, count: int, payload_bytes: int) -> None:
        asyncio.run(self._fill(count, filler(payload_bytes)))

    async def _fill(self, count: int, rest: bytes) -> None:
        import redis.asyncio

        async with redis.asyncio.Redis(unix_socket_path=self.place) as client:
            await client.config_set("appendfsync", "no")
            for start in range(0, count, _FILL_ITEMS):
                await client.eval(_FILL, 0, start, min(count, start + _FILL_ITEMS), rest)
            await client.config_set("appendfsync", "always")
            await client.incrby("filled", 1)

    def waiting(self) -> int:
        return asyncio.run(self._waiting())

    async def _waiting(self) -> int:
        import redis.asyncio

        async with redis.asyncio.Redis(unix_socket_path=self.place) as client:
            return int(await client.hlen(PAYLOADS))


_FILL_ITEMS: Final = 20_000


async def redis_caller(place: str, lease_s: float) -> Caller:
    """Connect with the parser of hiredis, which the client uses if it is installed."""
    import redis.asyncio

    client = redis.asyncio.Redis(unix_socket_path=place, single_connection_client=True)
    await client.initialize()
    return RedisCaller(client, [await client.script_load(text) for text in (_PUT, _TAKE, _DONE)], lease_s)


class RedisCaller:
    """Calls the scripts by their digests."""

    def __init__(self, client: Any, digests: Sequence[str], lease_s: float) -> None:
        self._client = client
        self._put, self._take, self._done = digests
        self._lease_ms = round(lease_s * 1000)

    async def put(self, items: Batch) -> Put:
        await self._client.evalsha(self._put, 0, *items.topics, *items.payloads)
        return all_durable(items)

    async def take(self, wants: Mapping[str, int], wait_ms: int) -> Taken:
        pairs = [word for pair in wants.items() for word in pair]
        leases, payloads = await self._client.evalsha(self._take, 0, self._lease_ms, *pairs)
        if not leases:
            await asyncio.sleep(EMPTY_PAUSE_S)
            return NOTHING
        return leases, payloads

    async def done(self, handles: Sequence[Any]) -> None:
        await self._client.evalsha(self._done, 0, *handles)

    async def close(self) -> None:
        await self._client.aclose()
