-- A control process says that it turns, on this server's clock, and learns how many do.
--
-- KEYS[1] penstock:controls   zset name -> when it said so last (seconds)
-- ARGV[1] name, ARGV[2] seconds until it is forgotten
-- Returns how many there are, this one included

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. now + tonumber(ARGV[2]), '+inf') -- from before the clock stepped back
return redis.call('ZCARD', KEYS[1])
