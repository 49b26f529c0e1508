-- Say "I am here" and count who else is, so that each process takes its part of the window. Preludes: clock, breaker.
--
-- KEYS[1]  <prefix>{q:<id>}:w  sorted set: process -> time of its last heartbeat, us
-- KEYS[2]  <prefix>{q:<id>}:s  hash: process -> what it last said about itself, as JSON; gone with the process
-- KEYS[3]  the quota hash described in reserve.lua: probes that a silent process may have had go out again
-- ARGV  1 now_us or ''   2 process   3 how long a heartbeat counts, us (0 = I am leaving)   4 JSON, or '' to say nothing
-- returns how many processes are here

local now, process, ttl, said = clock_us(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]

local function forget(from, to)
  local silent = redis.call('ZRANGEBYSCORE', KEYS[1], from, to)
  for _, name in ipairs(silent) do redis.call('HDEL', KEYS[2], name) end
  if #silent == 0 then return end
  redis.call('ZREMRANGEBYSCORE', KEYS[1], from, to)
  if redis.call('HGET', KEYS[3], 'bs') == tostring(HALF_OPEN) then redis.call('HSET', KEYS[3], 'bp', PROBES) end
end

if ttl == 0 then
  redis.call('ZREM', KEYS[1], process)
  redis.call('HDEL', KEYS[2], process)
else
  redis.call('ZADD', KEYS[1], string.format('%.0f', now), process)
  if said ~= '' then redis.call('HSET', KEYS[2], process, said) end
  forget('-inf', string.format('(%.0f', now - ttl))
  forget(string.format('(%.0f', now + ttl), '+inf') -- a clock that stepped back
end
return redis.call('ZCARD', KEYS[1])
