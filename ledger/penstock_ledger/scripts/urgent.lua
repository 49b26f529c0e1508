-- Put before the scripts that queue messages: where in the queue a message belongs, and who is woken.
--
-- One list per queue stays: kombu LPUSHes at its back and pops at its other end. Urgent messages, known by a header, lie
-- together at that end, the oldest first. They are few (feeders keep them below the number of slots), so walking past them
-- is cheap.

-- Idle workers wait (BLPOP) at penstock:wakes:<queue>, computed: each mark wakes one of them. See broker/connections.py. A group
-- of urgent messages makes a mark, and so does each of the first messages of a queue that was empty.

local WAKES_MAX, WAKES_S = 64, 5 -- marks that no one waits for are few, and go
local WOKEN_MAX = 8 -- workers that one group wakes; the others ask within half a second
local URGENT_SEEN = 500 -- urgent messages that one call walks past: a few milliseconds, should there ever be more

local function is_urgent(raw)
  return string.find(raw, '"x-penstock-urgent":', 1, true) ~= nil -- inside a body its quotes would be escaped
end

local function wake(list, workers)
  local wakes = 'penstock:wakes:' .. list
  for _ = 1, math.min(workers, WOKEN_MAX) do redis.call('LPUSH', wakes, '') end
  redis.call('LTRIM', wakes, 0, WAKES_MAX - 1)
  redis.call('EXPIRE', wakes, WAKES_S)
end

-- Messages, oldest first, to the back of the list.
local function queue_behind(list, raws)
  if redis.call('LPUSH', list, unpack(raws)) == #raws then wake(list, #raws) end
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
  wake(list, 1)
end

