-- Move messages of a resumed job back to its queue, oldest first.
--
-- KEYS[1] penstock:<job>:parked   list of raw messages, oldest at the left
-- KEYS[2] <queue>                 kombu's list; LPUSH is its back. Urgent messages: urgent.lua
-- KEYS[3] unacked                 kombu's hash tag -> message. A tag that is still held there was parked but not
--                                 acknowledged yet; its message would be dropped as a duplicate, so it is parked again
-- ARGV[1] how many at most (at most 500)
-- Returns how many were moved

local moved, urgent = 0, {}
for _ = 1, math.min(tonumber(ARGV[1]), redis.call('LLEN', KEYS[1])) do
  local raw = redis.call('LPOP', KEYS[1])
  local tag = string.match(raw, '"delivery_tag":%s*"([^"]*)"')
  if tag and redis.call('HEXISTS', KEYS[3], tag) == 1 then
    redis.call('RPUSH', KEYS[1], raw)
  else
    if is_urgent(raw) then urgent[#urgent + 1] = raw else redis.call('LPUSH', KEYS[2], raw) end
    moved = moved + 1
  end
end
if #urgent > 0 then queue_urgent(KEYS[2], urgent) end
return moved
