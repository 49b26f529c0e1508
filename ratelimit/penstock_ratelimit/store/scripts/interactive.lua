-- Let one process of all look at the server, and tell the others how many requests each may have in flight. Prelude: clock.
--
-- KEYS[1]  the quota hash described in reserve.lua; here
--   ib iu    the process that looks, and until when, us
--   iy ia    what it last decided, as JSON (penstock_ratelimit/shared/interactive.py), and when, us
-- KEYS[2]  <prefix>{q:<id>}:w  the processes, described in heartbeat.lua    KEYS[3]  <prefix>{q:<id>}:s  what they say
-- KEYS[4]  <prefix>{q:<id>}:i  hash, no expiry: process -> its part of the ceiling, whole requests; written as a whole here
-- ARGV  1 now_us or ''   2 process   3 how long a process looks without a sign, us
--       4 what was decided, '' = nothing, then process, part, ... of all; taken from the process that looks only
-- returns {0, part or -1} where another looks, else {1, part or -1, tickets granted so far, decided or '', process, what it says, ...}

local FORGET_US = 30e6 -- what was decided before a rest that long is no longer right
local MOST_PROCESSES = 10000 -- more than any fleet has

local key, process, lasts = KEYS[1], ARGV[2], tonumber(ARGV[3])
local now = clock_us(ARGV[1])
local by, till = unpack(redis.call('HMGET', key, 'ib', 'iu'))
till = tonumber(till) or 0
local looks = by == process or till < now or till > now + lasts -- or its clock stepped back
if looks then
  redis.call('HSET', key, 'ib', process, 'iu', string.format('%.0f', now + lasts))
  if ARGV[4] ~= '' then
    redis.call('HSET', key, 'iy', ARGV[4], 'ia', string.format('%.0f', now))
    redis.call('DEL', KEYS[4])
    for at = 5, #ARGV, 2 do redis.call('HSET', KEYS[4], ARGV[at], ARGV[at + 1]) end
  end
end
local part = tonumber(redis.call('HGET', KEYS[4], process) or '-1')
if not looks then return {0, part} end
local granted, decided, at = unpack(redis.call('HMGET', key, 'n', 'iy', 'ia'))
local is_fresh = decided and now - tonumber(at) <= FORGET_US
local reply = {1, part, tonumber(granted or '0'), is_fresh and decided or ''}
for _, name in ipairs(redis.call('ZRANGE', KEYS[2], 0, MOST_PROCESSES - 1)) do
  reply[#reply + 1] = name
  reply[#reply + 1] = redis.call('HGET', KEYS[3], name) or ''
end
return reply
