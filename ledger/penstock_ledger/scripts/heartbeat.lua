-- A worker says that it lives, on this server's clock. Workers that have been silent for long are forgotten.
--
-- KEYS[1] penstock:workers         zset name -> last heartbeat (seconds)
-- KEYS[2] penstock:worker:<name>   hash of what it says of itself
-- ARGV[1] name, ARGV[2] seconds until it is forgotten, then fields and values (at least one pair)

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. now + tonumber(ARGV[2]), '+inf') -- from before the clock stepped back
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 1
