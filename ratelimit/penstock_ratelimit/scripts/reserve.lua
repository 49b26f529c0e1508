-- Hand out start times for a batch of items, all dimensions at once (GCRA), and settle finished ones in the same step.
--
-- KEYS[1]  <prefix>{q:<id>}  hash, no expiry, one per quota:
--   v        version of the terms in force: "<counter>:<sha1 of config>"   written by install
--   config   the terms in force, as JSON                                   written by install
--   r:<dim>  units per second    b:<dim>  burst in units    c:<dim>  largest cost of one item (for readers; clients clip)
--   t:<dim>  theoretical arrival time, us: when the bucket is full again    written here and by install
--   m:<dim>  mean time that one item takes of this dimension, us: the last 50 items of the fleet    written here
--   nb       nobody starts before this time, us                             written here
--   lt       latest time seen, us                                           written here and by install
--
-- KEYS[2]  <prefix>{q:<id>}:w  the processes that share the quota, described in heartbeat.lua
--
-- ARGV  1 now_us or ''   2 version   3 max_ahead_us   4 share_us (0 = any)   5 pause_us (0 = none)   6 n dimensions
--       then n times: dim, settlement (+ charge, - refund); then the items' costs, row by row, in the same order
-- No items: settle only.
--
-- returns {granted, retry_us, pause_left_us, pause_at_us, pace_us per item (0 = unknown), processes,
--          wait_1_us, ...}
--         {-1}                       no such quota: install first (Redis forgot); nothing was done
--         {-3, version, config}      other terms are in force: adopt them; nothing was done
-- Guarantee per dimension: in any interval of t seconds, starts cost at most r*t + b (+ one item larger than b).
-- An item larger than b needs a full bucket and then leaves a debt. Start times never decrease between items of a call.

local LEARNING_RATE = 0.02

local n = tonumber(ARGV[6])
local fields = {'v', 'lt', 'nb'}
for i = 1, n do
  local dim = ARGV[5 + 2 * i]
  fields[#fields + 1] = 'r:' .. dim
  fields[#fields + 1] = 'b:' .. dim
  fields[#fields + 1] = 't:' .. dim
  fields[#fields + 1] = 'm:' .. dim
end
local state = redis.call('HMGET', KEYS[1], unpack(fields))
if not state[1] then return {-1} end
if state[1] ~= ARGV[2] then return {-3, state[1], redis.call('HGET', KEYS[1], 'config')} end

local now, back = guarded(clock_us(ARGV[1]), tonumber(state[2]) or 0)
local pause_at = (tonumber(state[3]) or 0) - back
local pause_us = tonumber(ARGV[5])
if pause_us > 0 and now + pause_us > pause_at then pause_at = now + pause_us end

local rate, burst, tat, tat_before, mean = {}, {}, {}, {}, {}
for i = 1, n do
  local at = 4 * i
  rate[i] = tonumber(state[at]) / 1000000
  burst[i] = tonumber(state[at + 1])
  local settlement = tonumber(ARGV[6 + 2 * i])
  -- a refund is worth nothing once the bucket is full again: the provider's own would have run over too
  tat[i] = math.max(math.max(tonumber(state[at + 2]) - back, now) + settlement / rate[i], now)
  tat_before[i] = tat[i]
  mean[i] = tonumber(state[at + 3])
end

local max_ahead, share = tonumber(ARGV[3]), tonumber(ARGV[4])
local first = 6 + 2 * n
local items = n > 0 and (#ARGV - first) / n or 0
local granted, retry_us, waits = 0, 0, {}
for item = 0, items - 1 do
  local start = math.max(now, pause_at)
  for i = 1, n do
    local cost = tonumber(ARGV[first + item * n + i])
    start = math.max(start, tat[i] + (math.min(cost, burst[i]) - burst[i]) / rate[i])
  end
  if start - now > max_ahead then
    retry_us = math.ceil(start - now - max_ahead)
    break
  end
  local advance = 0
  for i = 1, n do
    local takes = tonumber(ARGV[first + item * n + i]) / rate[i]
    tat[i] = math.max(tat[i], start) + takes
    mean[i] = (mean[i] or takes) + LEARNING_RATE * (takes - (mean[i] or takes))
    advance = math.max(advance, tat[i] - tat_before[i])
  end
  granted = granted + 1
  waits[granted] = math.ceil(start - now)
  if share > 0 and advance > share then break end
end

-- '%.0f' and not tostring, which keeps 14 digits
local pace_us = 0
local writes = {'lt', string.format('%.0f', now), 'nb', string.format('%.0f', pause_at)}
for i = 1, n do
  writes[#writes + 1] = 't:' .. ARGV[5 + 2 * i]
  writes[#writes + 1] = string.format('%.0f', tat[i])
  if mean[i] then
    writes[#writes + 1] = 'm:' .. ARGV[5 + 2 * i]
    writes[#writes + 1] = string.format('%.3f', mean[i])
    pace_us = math.max(pace_us, math.ceil(mean[i]), 1)
  end
end
redis.call('HSET', KEYS[1], unpack(writes))
return {granted, retry_us, math.max(0, math.ceil(pause_at - now)), pause_at, pace_us,
  redis.call('ZCARD', KEYS[2]), unpack(waits)}
