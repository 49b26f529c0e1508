-- Count a request of a tenant at the HTTP doors, unless it has had as many in the last minute, or has as many under way.
--
-- KEYS[1] penstock:callers:<digest>:minute  string when its requests of the last minute are used up again (seconds, this
--                                           server's clock)
-- KEYS[2] penstock:callers:<digest>:now     zset   request -> until when it counts, unless it is renewed
-- ARGV[1] requests per minute, 0 for no limit
-- ARGV[2] requests at once, 0 for no limit
-- ARGV[3] the request
-- ARGV[4] seconds for which it counts
-- Returns {0, 0}, or {1, milliseconds to wait} for the minute, or {2, 0} for those at once

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local per_minute, at_once = tonumber(ARGV[1]), tonumber(ARGV[2])
if at_once > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  if redis.call('ZCARD', KEYS[2]) >= at_once then
    return {2, 0}
  end
end
if per_minute > 0 then
  -- A clock that steps back must not lock a tenant out: it is never charged for more than a minute ahead.
  local used = math.min(tonumber(redis.call('GET', KEYS[1]) or 0), now + 60)
  local after = math.max(used, now) + 60 / per_minute
  if after > now + 60.000001 then
    return {1, math.ceil((after - now - 60) * 1000)}
  end
  redis.call('SET', KEYS[1], string.format('%.6f', after), 'EX', 120)
end
if at_once > 0 then
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[4]), ARGV[3])
  redis.call('EXPIRE', KEYS[2], math.ceil(tonumber(ARGV[4])) + 60)
end
return {0, 0}
