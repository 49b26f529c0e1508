-- Put before the scripts that queue messages: where in the queue a message belongs.
--
-- One list per queue stays: kombu LPUSHes at its back and pops at its other end. Urgent messages, known by a header, lie
-- together at that end, the oldest first. They are few (feeders keep them below the number of slots), so walking past them
-- is cheap.

-- Idle workers wait (BLPOP) at penstock:wakes:<queue>, computed: a mark for each group wakes one of them. See broker/connections.py.

local WAKES_MAX, WAKES_S = 64, 5 -- marks that no one waits for are few, and go
local URGENT_SEEN = 500 -- urgent messages that one call walks past: a few milliseconds, should there ever be more

local function is_urgent(raw)
  return string.find(raw, '"x-penstock-urgent":', 1, true) ~= nil -- inside a body its quotes would be escaped
end

-- Messages, oldest first, to the consuming end of the list, behind the urgent ones that wait there.
local function queue_urgent(list, raws)
  local ahead = {}
  while #ahead < URGENT_SEEN do
    local last = redis.call('LINDEX', list, -1)
    if not last or not is_urgent(last) then break end
    ahead[#ahead + 1] = redis.call('RPOP', list)
  end
  for i = #raws, 1, -1 do redis.call('RPUSH', list, raws[i]) end
  for i = #ahead, 1, -1 do redis.call('RPUSH', list, ahead[i]) end
  local wakes = 'penstock:wakes:' .. list
  redis.call('LPUSH', wakes, '')
  redis.call('LTRIM', wakes, 0, WAKES_MAX - 1)
  redis.call('EXPIRE', wakes, WAKES_S)
end

