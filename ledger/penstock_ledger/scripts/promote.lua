-- Move messages whose time has come from the delayed set to the queue.
--
-- KEYS[1] penstock:delayed:<queue>       zset tag -> not before (seconds, this server's clock)
-- KEYS[2] penstock:delayed:<queue>:raw   hash tag -> raw message
-- KEYS[3] <queue>                        kombu's list. LPUSH: the back of the queue, behind documents that were never
--                                        tried, so that a few documents that fail again and again cannot starve the rest.
--                                        Urgent ones return to the urgent, which are too few to starve anybody
-- KEYS[4] unacked                        kombu's hash tag -> message. A tag that is still held there was retried but not
--                                        acknowledged yet; its message would be taken for a duplicate and dropped, so
--                                        it waits ARGV[2] seconds more
-- ARGV[1] how many at most (at most 500), ARGV[2] seconds
-- Returns how many were moved

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local moved, urgent = 0, {}
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])) do
  if redis.call('HEXISTS', KEYS[4], tag) == 1 then
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), tag)
  else
    redis.call('ZREM', KEYS[1], tag)
    local raw = redis.call('HGET', KEYS[2], tag)
    if raw then
      redis.call('HDEL', KEYS[2], tag)
      if is_urgent(raw) then urgent[#urgent + 1] = raw else redis.call('LPUSH', KEYS[3], raw) end
      moved = moved + 1
    end
  end
end
if #urgent > 0 then queue_urgent(KEYS[3], urgent) end
return moved
