-- Extends leases, those that are still the caller's, by this server's clock.
-- KEYS: unacked_index, penstock:epoch:rebuilt
-- ARGV: visibility timeout, how long a rebuild is known, both in seconds, then pairs of delivery tag and lease time as the caller saw it last
-- Returns {lease time from now on, lost tag, lost tag, ...}

local started, rebuilt = now(), rebuilt_at(KEYS[2], ARGV[2])
local tags, reply, leases = {}, {started}, {}
for at = 3, #ARGV, 2 do tags[#tags + 1] = ARGV[at] end
local scores = redis.call('ZMSCORE', KEYS[1], unpack(tags))
for at, tag in ipairs(tags) do
  if is_near(scores[at], ARGV[2 * at + 2], ARGV[1], rebuilt) then
    leases[#leases + 1], leases[#leases + 2] = started, tag
  else
    reply[#reply + 1] = tag
  end
end
if #leases > 0 then redis.call('ZADD', KEYS[1], unpack(leases)) end
return reply
