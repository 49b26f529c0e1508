-- Send messages that their holder cannot serve to another queue. They become due at once and go there by promote.lua, once
-- their holder has acknowledged them: until then they would be taken for duplicates.
--
-- KEYS[1] penstock:queues:<lane's queue>       zset queue -> when it was last noted (seconds, this server's clock)
-- KEYS[2], KEYS[3] delayed set and raw messages of the queue that they go to
-- KEYS[4], KEYS[5] the same of the lane's own queue, where they wait while the lane has no room for another queue
-- ARGV[1] the queue that they go to, ARGV[2] how many queues the lane may have, ARGV[3] seconds to wait without room,
-- then pairs of tag and raw message
-- Returns how many are on their way

local clock = redis.call('TIME')
local due = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local delayed, raws = KEYS[2], KEYS[3]
if redis.call('ZSCORE', KEYS[1], ARGV[1]) or redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('ZADD', KEYS[1], due, ARGV[1])
else
  delayed, raws = KEYS[4], KEYS[5]
  due = due + tonumber(ARGV[3])
end
local moved = 0
for i = 4, #ARGV, 2 do
  if redis.call('ZADD', delayed, 'NX', due, ARGV[i]) == 1 then
    redis.call('HSET', raws, ARGV[i], ARGV[i + 1])
    moved = moved + 1
  end
end
return moved
