-- Move messages whose time has come from the delayed set to the queue.
--
-- KEYS[1] penstock:delayed:<queue>       zset tag -> not before (seconds, this server's clock)
-- KEYS[2] penstock:delayed:<queue>:raw   hash tag -> raw message
-- KEYS[3] <queue>                        kombu's list. LPUSH: the back of the queue, behind documents that were never
--                                        tried, so that a few documents that fail again and again cannot starve the rest.
--                                        Urgent ones return to the urgent, which are too few to keep others from their turn
-- KEYS[4] penstock:delayed:<queue>:clock  string, the latest time that this script has seen (seconds)
-- KEYS[5…] unacked                       kombu's hashes tag -> message, of all queues of the lane. A tag that is still held
--                                        there was retried but not acknowledged yet; its message would be taken for a
--                                        duplicate and dropped, so it waits ARGV[2] seconds more
-- ARGV[1] how many at most (at most 500), ARGV[2] seconds
-- ARGV[3] seconds ahead that an honest time can be: later ones were set before the clock stepped back, and are pulled to it
-- Returns how many were moved

local CLOCK_SLACK_S = 1 -- a clock that wavers by less is left alone; it is also how often the time seen is written down
local MOVED_MAX = 20000 -- delayed messages moved at once: some 20 ms of Redis, after a step of its clock only

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local moved, urgent, others = 0, {}, {}

local function is_held(tag)
  for i = 5, #KEYS do
    if redis.call('HEXISTS', KEYS[i], tag) == 1 then return true end
  end
  return false
end

-- A failover or NTP may set the clock back. What is delayed was timed by the clock from before, and moves back with it.
local stepped = (tonumber(redis.call('GET', KEYS[4]) or '') or now) - now
if stepped > CLOCK_SLACK_S then
  local delayed = redis.call('ZRANGE', KEYS[1], 0, MOVED_MAX - 1, 'WITHSCORES')
  for i = 1, #delayed, 2 do redis.call('ZADD', KEYS[1], tonumber(delayed[i + 1]) - stepped, delayed[i]) end
end
local latest = now + tonumber(ARGV[3])
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. latest, '+inf', 'LIMIT', 0, ARGV[1])) do
  redis.call('ZADD', KEYS[1], latest, tag)
end
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])) do
  if is_held(tag) then
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), tag)
  else
    redis.call('ZREM', KEYS[1], tag)
    local raw = redis.call('HGET', KEYS[2], tag)
    if raw then
      redis.call('HDEL', KEYS[2], tag)
      local group = is_urgent(raw) and urgent or others
      group[#group + 1] = raw
      moved = moved + 1
    end
  end
end
if #urgent > 0 then queue_urgent(KEYS[3], urgent) end
if #others > 0 then queue_behind(KEYS[3], others) end
if stepped == 0 or math.abs(stepped) > CLOCK_SLACK_S then redis.pcall('SET', KEYS[4], string.format('%.6f', now)) end
return moved
