"""Lua scripts: each runs in Redis as one transaction.

They use commands of Redis 6.2 and older. A worker's script changes nothing and returns 0 when Redis differs
from what the worker wrote last; the worker then republishes.
"""

from __future__ import annotations

from typing import Final

from baton_core.blocks.block_hash import HASH_BYTES

_EACH: Final = f"""
local function each(command, key, packed)
  local size, run = {HASH_BYTES}, 1000
  for first = 1, #packed, size * run do
    local hashes = {{}}
    for at = first, math.min(first + size * run - 1, #packed), size do
      hashes[#hashes + 1] = string.sub(packed, at, at + size - 1)
    end
    redis.call(command, key, unpack(hashes))
  end
end
"""

_COUNT: Final = """
local function count(key)
  local number = redis.pcall('INCR', key)
  if type(number) == 'number' then return number end
  redis.call('DEL', key)
  return redis.call('INCR', key)
end
"""

ADD_CHANGE: Final = (
    _EACH
    + _COUNT
    + """
-- KEYS worker blocks changes num_changes; ARGV epoch number lease_ms max_entries header stored removed
local known = redis.call('HMGET', KEYS[1], 'epoch', 'number')
if known[1] ~= ARGV[1] then return 0 end
if known[2] == ARGV[2] then return 1 end
if tonumber(known[2]) ~= tonumber(ARGV[2]) - 1 then return 0 end
each('SADD', KEYS[2], ARGV[6])
each('SREM', KEYS[2], ARGV[7])
redis.call('HSET', KEYS[1], 'number', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[4], '*', 'count', count(KEYS[4]),
  'header', ARGV[5], 'stored', ARGV[6], 'removed', ARGV[7])
return 1
"""
)

REPUBLISH: Final = (
    _EACH
    + _COUNT
    + """
-- KEYS workers worker blocks changes num_changes
-- ARGV worker_id info epoch number lease_ms max_entries header stored
local epoch = redis.call('HGET', KEYS[2], 'epoch')
local is_read = epoch and string.match(epoch, '^%d+$')
if is_read and (#epoch > #ARGV[3] or (#epoch == #ARGV[3] and epoch > ARGV[3])) then return 0 end
redis.call('DEL', KEYS[2], KEYS[3])
each('SADD', KEYS[3], ARGV[8])
redis.call('HSET', KEYS[2], 'info', ARGV[2], 'epoch', ARGV[3], 'number', ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('PEXPIRE', KEYS[3], ARGV[5])
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[6], '*', 'count', count(KEYS[5]),
  'header', ARGV[7], 'stored', '', 'removed', '')
return 1
"""
)

RENEW_WORKER: Final = """
-- KEYS workers worker blocks; ARGV worker_id epoch number lease_ms num_blocks
local known = redis.call('HMGET', KEYS[2], 'epoch', 'number')
if known[1] ~= ARGV[2] or known[2] ~= ARGV[3] then return 0 end
if redis.call('SCARD', KEYS[3]) ~= tonumber(ARGV[5]) then return 0 end
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('PEXPIRE', KEYS[3], ARGV[4])
return 1
"""

RELEASE_WORKER: Final = """
-- KEYS workers worker blocks; ARGV worker_id epoch
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[2] then return 0 end
redis.call('SREM', KEYS[1], ARGV[1])
return redis.call('DEL', KEYS[2], KEYS[3])
"""

READ_WORKER: Final = """
-- KEYS worker blocks; returns epoch, number, hashes; nothing where there is no such worker
local known = redis.call('HMGET', KEYS[1], 'epoch', 'number')
if not known[1] then return {} end
return {known[1], known[2], table.concat(redis.call('SMEMBERS', KEYS[2]))}
"""

PUT_ROUTER: Final = """
-- KEYS routers router loads; ARGV router_id lease_ms max_entries record load is_new
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], 'record', ARGV[4], 'load', ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
if ARGV[6] == '1' then redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', 'load', ARGV[5]) end
return 1
"""

RELEASE_ROUTER: Final = """
-- KEYS routers router loads; ARGV router_id max_entries load
redis.call('SREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[2], '*', 'load', ARGV[3])
return 1
"""

READ_ROUTERS: Final = """
-- KEYS routers; ARGV prefix field; returns id and field of every router whose lease holds, forgets the others
local found = {}
for _, router_id in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local value = redis.pcall('HGET', ARGV[1] .. router_id, ARGV[2])
  if type(value) == 'string' then
    found[#found + 1] = router_id
    found[#found + 1] = value
  else
    redis.call('SREM', KEYS[1], router_id)
  end
end
return found
"""

DROP_OTHER_KINDS: Final = """
-- KEYS key...; ARGV kind...; deletes the keys that are of another type than they must be
for at, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= ARGV[at] then redis.call('DEL', key) end
end
return 1
"""
