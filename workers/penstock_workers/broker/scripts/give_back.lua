-- Returns messages to the front of the queues they came from, those that are still the caller's.
-- KEYS: unacked, unacked_index, penstock:parked:unknown, penstock:epoch:rebuilt
-- ARGV: visibility timeout in seconds, for how many seconds a rebuild is known, key prefix, priority steps, then pairs of delivery tag and
-- lease time
-- Returns the tags whose lease was lost

local lost, rebuilt = {}, rebuilt_at(KEYS[4], ARGV[2])
for at = #ARGV - 1, 5, -2 do -- backwards, so that the first one ends up in front
  local tag = ARGV[at]
  if is_held(KEYS[2], tag, ARGV[at + 1], ARGV[1], rebuilt) then
    local record = redis.call('HGET', KEYS[1], tag)
    drop(KEYS[1], KEYS[2], tag) -- first: a full Redis refuses only a script's first write
    if record then put_back(record, KEYS[3], ARGV[3], ARGV[4]) end
  else
    lost[#lost + 1] = tag
  end
end
return lost
