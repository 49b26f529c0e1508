-- Say "I am here" and count who else is, so that each process takes its part of the window.
--
-- KEYS[1]  <prefix>{q:<id>}:w  sorted set: process -> time of its last heartbeat, us
-- ARGV  1 now_us or ''   2 process   3 how long a heartbeat counts, us (0 = I am leaving)
-- returns how many processes are here

local now, ttl = clock_us(ARGV[1]), tonumber(ARGV[3])
if ttl == 0 then
  redis.call('ZREM', KEYS[1], ARGV[2])
else
  redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - ttl))
  redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + ttl), '+inf') -- a clock that stepped back
end
return redis.call('ZCARD', KEYS[1])
