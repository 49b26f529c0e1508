-- A worker that makes calls for jobs with a budget says that it lives, on this server's clock; the dead are forgotten.
--
-- KEYS[1] penstock:budgets:owners  zset: who -> when it last said so (seconds)
-- ARGV[1] who, ARGV[2] seconds after which one that said nothing is dead
-- Returns 1

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. now + tonumber(ARGV[2]), '+inf') -- from before the clock stepped back
return 1
