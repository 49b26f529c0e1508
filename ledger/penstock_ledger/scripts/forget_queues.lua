-- Forget queues of models that are empty and were not noted lately.
--
-- KEYS[1] penstock:queues:<lane's queue>  zset queue -> when it was last noted (seconds, this server's clock)
-- computed, of each queue that may go: <queue>, unacked.<queue without penstock.>, penstock:delayed:<queue>,
--   penstock:relayed:<queue>
-- ARGV[1] seconds that a queue stays after it was last noted, ARGV[2] how many are looked at
-- Returns how many were forgotten

local clock = redis.call('TIME')
local before = tonumber(clock[1]) - tonumber(ARGV[1])
local forgotten = 0
for _, queue in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', before, 'LIMIT', 0, ARGV[2])) do
  local held = 'unacked.' .. string.gsub(queue, '^penstock%.', '')
  if redis.call('EXISTS', queue, held, 'penstock:delayed:' .. queue, 'penstock:relayed:' .. queue) == 0 then
    redis.call('ZREM', KEYS[1], queue)
    forgotten = forgotten + 1
  end
end
return forgotten
