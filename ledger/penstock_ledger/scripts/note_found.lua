-- Note the queues of adapters that workers of one model have found, in place of those noted for it before.
--
-- KEYS[1] penstock:found:<lane's queue>  hash queue of an adapter -> queue under whose name its workers keep what they hold
-- ARGV[1] that queue, ARGV[2] how many there may be of all models together, then the queues of the adapters
-- Returns how many are noted for it

local home, most = ARGV[1], tonumber(ARGV[2])
local now = {}
for i = 3, #ARGV do
  now[ARGV[i]] = true
end
local noted = redis.call('HGETALL', KEYS[1])
for i = 1, #noted, 2 do
  if noted[i + 1] == home and not now[noted[i]] then
    redis.call('HDEL', KEYS[1], noted[i])
  end
end
local count = 0
for i = 3, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 or redis.call('HLEN', KEYS[1]) < most then
    redis.call('HSET', KEYS[1], ARGV[i], home)
    count = count + 1
  end
end
return count
