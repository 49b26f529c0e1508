-- Keeps messages aside that no task wants, those that are still the caller's.
-- KEYS: unacked, unacked_index, penstock:parked:unknown, penstock:epoch:rebuilt
-- ARGV: visibility timeout in seconds, for how many seconds a rebuild is known, then pairs of delivery tag and lease time
-- Returns the tags whose lease was lost

local lost, rebuilt = {}, rebuilt_at(KEYS[4], ARGV[2])
for at = 3, #ARGV, 2 do
  local tag = ARGV[at]
  if is_held(KEYS[2], tag, ARGV[at + 1], ARGV[1], rebuilt) then
    local record = redis.call('HGET', KEYS[1], tag)
    drop(KEYS[1], KEYS[2], tag) -- first: a full Redis refuses only a script's first write
    if record then redis.call('RPUSH', KEYS[3], (open_record(record)) or record) end
  else
    lost[#lost + 1] = tag
  end
end
return lost
