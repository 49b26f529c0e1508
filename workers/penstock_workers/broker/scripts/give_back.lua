-- Returns messages to the front of the queues they came from, those that are still the caller's.
-- KEYS: unacked, unacked_index, penstock:parked:unknown
-- ARGV: visibility timeout in seconds, key prefix, priority steps, then pairs of delivery tag and lease time
-- Returns the tags whose lease was lost

local lost = {}
for at = #ARGV - 1, 4, -2 do -- backwards, so that the first one ends up in front
  local tag = ARGV[at]
  if is_held(KEYS[2], tag, ARGV[at + 1], ARGV[1]) then
    local record = redis.call('HGET', KEYS[1], tag)
    drop(KEYS[1], KEYS[2], tag) -- first: a full Redis refuses only a script's first write
    if record then put_back(record, KEYS[3], ARGV[2], ARGV[3]) end
  else
    lost[#lost + 1] = tag
  end
end
return lost
