-- Note the queues of models that a lane has, as long as there is room for them.
--
-- KEYS[1] penstock:queues:<lane's queue>  zset queue -> when it was last noted (seconds, this server's clock)
-- ARGV[1] how many there may be, then the queues
-- Returns those for which there was no room

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local refused = {}
for i = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) or redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[1]) then
    redis.call('ZADD', KEYS[1], now, ARGV[i])
  else
    refused[#refused + 1] = ARGV[i]
  end
end
return refused
