"""Lua scripts of the responses that routers keep: each runs in Redis as one transaction, by its clock.

All begin with the same keys and arguments. The index orders responses by age; the hash of sizes has the bytes
of each, and under the empty name those of all; two sorted sets have how many responses each tenant holds, and
their bytes. What grows drops responses of the tenant that holds the most until all are in bounds.
"""

from __future__ import annotations

from typing import Final

_BEGIN: Final = """
-- KEYS responses sizes changes tenants_by_number tenants_by_bytes
-- ARGV prefix events_prefix name max_responses max_bytes age_ms lease_ms
local index, sizes, changes, by_number, by_bytes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local name, age_ms, lease_ms = ARGV[3], tonumber(ARGV[6]), tonumber(ARGV[7])
local response, events = ARGV[1] .. name, ARGV[2] .. name
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- A key of another type fails here, before anything is changed.
redis.call('ZCARD', index)
redis.call('HLEN', sizes)
redis.call('XLEN', changes)
redis.call('ZCARD', by_number)
redis.call('ZCARD', by_bytes)

local function count(one, num_bytes)
  if type(redis.pcall('HINCRBY', sizes, one, num_bytes)) == 'table' then
    redis.call('DEL', sizes, by_number, by_bytes)
  end
end

local function count_of_tenant(one, number, num_bytes)
  local tenant = string.match(one, '[^:]*')
  for holders, added in pairs({[by_number] = number, [by_bytes] = num_bytes}) do
    redis.call('ZINCRBY', holders, added, tenant)
    redis.call('ZREMRANGEBYSCORE', holders, '-inf', 0)
  end
end

local function forget(one)
  local size = tonumber(redis.call('HGET', sizes, one))
  if size then
    count('', -size)
    count_of_tenant(one, -1, -size)
    redis.call('HDEL', sizes, one)
  end
  redis.call('ZREM', index, one)
  return redis.call('DEL', ARGV[1] .. one, ARGV[2] .. one)
end

-- Returns the oldest response of the tenant that holds the most; one in progress only if it has no other.
local function first_to_go(holders)
  local tenant = (redis.call('ZREVRANGE', holders, 0, 0)[1] or '') .. ':'
  local oldest, start = nil, 0
  while true do
    local names = redis.call('ZRANGE', index, start, start + 63)
    if not names[1] then return oldest or redis.call('ZRANGE', index, 0, 0)[1] end
    for _, one in ipairs(names) do
      if string.sub(one, 1, #tenant) == tenant then
        local known = redis.pcall('HMGET', ARGV[1] .. one, 'status', 'leased_until')
        if known[1] ~= 'in_progress' or (tonumber(known[2]) or 0) <= now_ms then return one end
        oldest = oldest or one
      end
    end
    start = start + #names
  end
end

local function grow(num_bytes)
  count(name, num_bytes)
  count('', num_bytes)
  count_of_tenant(name, 0, num_bytes)
  while true do
    local oldest = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
    if not oldest[1] then return redis.call('DEL', sizes, by_number, by_bytes) end
    if tonumber(oldest[2]) < now_ms - age_ms then
      forget(oldest[1])
    elseif redis.call('ZCARD', index) > tonumber(ARGV[4]) then
      forget(first_to_go(by_number))
    elseif (tonumber(redis.call('HGET', sizes, '')) or 0) > tonumber(ARGV[5]) then
      forget(first_to_go(by_bytes))
    else
      return
    end
  end
end

local function publish(is_ended)
  redis.call('XADD', changes, 'MAXLEN', '~', 1024, '*', 'response', name, 'is_ended', is_ended)
end
"""

PUT_RESPONSE: Final = (
    _BEGIN
    + """
-- ARGV maker has_events body items; returns 0 where it is too large to be kept
local size = #ARGV[10] + #ARGV[11]
forget(name)
if size > tonumber(ARGV[5]) then return 0 end
redis.call('HSET', response, 'maker', ARGV[8], 'has_events', ARGV[9], 'body', ARGV[10], 'items', ARGV[11],
  'status', 'in_progress', 'num_events', 0, 'num_event_bytes', 0, 'leased_until', now_ms + lease_ms)
redis.call('PEXPIRE', response, age_ms)
redis.call('ZADD', index, now_ms, name)
count_of_tenant(name, 1, 0)
grow(size)
for _, key in ipairs({index, sizes, by_number, by_bytes}) do
  if redis.call('PTTL', key) < age_ms then redis.call('PEXPIRE', key, age_ms) end
end
return redis.call('EXISTS', response)
"""
)

WRITE_RESPONSE: Final = (
    _BEGIN
    + """
-- ARGV maker status body max_event_bytes number must_be_abandoned event...
-- Returns 1 if it was in progress, without a lease where it must be abandoned, and is kept.
-- Without a maker somebody else ends it. Events that Redis has already are skipped.
local known =
  redis.call('HMGET', response, 'status', 'maker', 'num_events', 'num_event_bytes', 'leased_until')
local maker, status, body = ARGV[8], ARGV[9], ARGV[10]
if known[1] ~= 'in_progress' or (maker ~= '' and known[2] ~= maker) then return 0 end
if ARGV[13] == '1' and (tonumber(known[5]) or 0) > now_ms then return 0 end
local had, had_bytes, first = tonumber(known[3]), tonumber(known[4]), tonumber(ARGV[12])
local num_events, num_bytes = had, had_bytes
if first > num_events then
  redis.call('DEL', events)
  num_events, num_bytes = first, 0
end
for at = 14 + num_events - first, #ARGV do
  redis.call('RPUSH', events, ARGV[at])
  num_events, num_bytes = num_events + 1, num_bytes + #ARGV[at]
end
while num_bytes > tonumber(ARGV[11]) do num_bytes = num_bytes - #redis.call('LPOP', events) end
redis.call('HSET', response, 'num_events', num_events, 'num_event_bytes', num_bytes,
  'leased_until', now_ms + lease_ms)
redis.call('PEXPIRE', events, redis.call('PTTL', response))
local added = num_bytes - had_bytes
if status ~= 'in_progress' then
  added = added + #body - redis.call('HSTRLEN', response, 'body')
  redis.call('HSET', response, 'status', status, 'body', body)
end
grow(added)
publish(maker == '' and 1 or 0)
return redis.call('EXISTS', response)
"""
)

RENEW_RESPONSES: Final = (
    _BEGIN
    + """
-- ARGV (name maker)...; returns the makers whose responses are over, gone or no longer such
local over = {}
for at = 8, #ARGV, 2 do
  local known = redis.pcall('HMGET', ARGV[1] .. ARGV[at], 'status', 'maker')
  if known[1] == 'in_progress' and known[2] == ARGV[at + 1] then
    redis.call('HSET', ARGV[1] .. ARGV[at], 'leased_until', now_ms + lease_ms)
  else
    over[#over + 1] = ARGV[at + 1]
  end
end
return over
"""
)

READ_RESPONSE: Final = (
    _BEGIN
    + """
-- ARGV field...; returns how long the lease still holds in ms, and the fields; nothing without a response
local known = redis.call('HMGET', response, 'leased_until', unpack(ARGV, 8))
if not known[1] then return {} end
known[1] = known[1] - now_ms
return known
"""
)

READ_RESPONSE_EVENTS: Final = (
    _BEGIN
    + """
-- ARGV start count; returns status, num_events, number of the first event, events
local known = redis.call('HMGET', response, 'status', 'num_events')
if not known[1] then return {} end
local num_dropped = known[2] - redis.call('LLEN', events)
local first = math.max(num_dropped, tonumber(ARGV[8]))
local at = first - num_dropped
return {known[1], tonumber(known[2]), first, redis.call('LRANGE', events, at, at + tonumber(ARGV[9]) - 1)}
"""
)

DELETE_RESPONSE: Final = (
    _BEGIN
    + """
-- ARGV maker; returns 1 if it was kept. Without a maker whoever made it.
if ARGV[8] ~= '' and redis.call('HGET', response, 'maker') ~= ARGV[8] then return 0 end
local is_kept = redis.call('EXISTS', response)
forget(name)
publish(1)
return is_kept
"""
)
