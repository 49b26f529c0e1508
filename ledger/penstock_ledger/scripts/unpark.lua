-- Move messages of a resumed job back to the queues that they came from, oldest first.
--
-- KEYS[1] penstock:<job>:parked   list of raw messages, oldest at the left
-- KEYS[2] <queue>                 the lane's own, kombu's list; LPUSH is its back. Urgent messages: urgent.lua
-- KEYS[3…] unacked                kombu's hashes tag -> message, of all queues of the lane. A tag that is still held there
--                                 was parked but not acknowledged yet; its message would be dropped as a duplicate, so it
--                                 is parked again
-- computed: <queue>.<model>, the queue that a message names, where it is one of this lane's, and penstock:queues:<queue>; or
-- that of another lane, where penstock:<job>:lane says that the job has left it: its workers drop the message
-- ARGV[1] how many at most (at most 500)
-- Returns how many were moved

local moved, urgent, lane = 0, {}, KEYS[2] .. '.'
local has_left = redis.call('EXISTS', (string.gsub(KEYS[1], ':parked$', ':lane'))) == 1

local function is_held(tag)
  for i = 3, #KEYS do
    if redis.call('HEXISTS', KEYS[i], tag) == 1 then return true end
  end
  return false
end

local function queue_of(raw) -- inside a body the quotes would be escaped
  local name = string.match(raw, '"routing_key":%s*"([^"\\]*)"', -1024) or ''
  if has_left and #name <= 200 and name ~= KEYS[2] and string.sub(name, 1, #lane) ~= lane then
    return string.match(name, '^penstock%.[%w._~-]+$') or KEYS[2]
  end
  if #name > 200 or string.sub(name, 1, #lane) ~= lane then return KEYS[2] end
  redis.call('ZADD', 'penstock:queues:' .. KEYS[2], redis.call('TIME')[1], name) -- it may have been forgotten meanwhile
  return name
end

for _ = 1, math.min(tonumber(ARGV[1]), redis.call('LLEN', KEYS[1])) do
  local raw = redis.call('LPOP', KEYS[1])
  local tag = string.match(raw, '"delivery_tag":%s*"([^"]*)"')
  if tag and is_held(tag) then
    redis.call('RPUSH', KEYS[1], raw)
  else
    local queue = queue_of(raw)
    if is_urgent(raw) then
      urgent[queue] = urgent[queue] or {}
      table.insert(urgent[queue], raw)
    else
      queue_behind(queue, {raw})
    end
    moved = moved + 1
  end
end
for queue, raws in pairs(urgent) do queue_urgent(queue, raws) end
return moved
