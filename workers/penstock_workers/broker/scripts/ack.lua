-- Forgets concluded messages, those that are still the caller's.
-- KEYS: unacked, unacked_index, penstock:epoch:rebuilt
-- ARGV: visibility timeout, how long a rebuild is known, both in seconds, then pairs of delivery tag and lease time as the caller saw it last
-- Returns the tags whose lease was lost; their records belong to another worker and stay

local tags, lost, kept, rebuilt = {}, {}, {}, rebuilt_at(KEYS[3], ARGV[2])
for at = 3, #ARGV, 2 do tags[#tags + 1] = ARGV[at] end
local scores = redis.call('ZMSCORE', KEYS[2], unpack(tags))
for at, tag in ipairs(tags) do
  if is_near(scores[at], ARGV[2 * at + 2], ARGV[1], rebuilt) then
    kept[#kept + 1] = tag
  else
    lost[#lost + 1] = tag
  end
end
if #kept > 0 then
  redis.call('ZREM', KEYS[2], unpack(kept))
  redis.call('HDEL', KEYS[1], unpack(kept))
end
return lost
