-- Extends leases, those that are still the caller's, by this server's clock.
-- KEYS: unacked_index
-- ARGV: visibility timeout in seconds, then pairs of delivery tag and lease time as the caller saw it last
-- Returns {lease time from now on, lost tag, lost tag, ...}

local started = now()
local reply, leases = {started}, {}
for at = 2, #ARGV, 2 do
  if is_held(KEYS[1], ARGV[at], ARGV[at + 1], ARGV[1]) then
    leases[#leases + 1], leases[#leases + 2] = started, ARGV[at]
  else
    reply[#reply + 1] = ARGV[at]
  end
end
if #leases > 0 then redis.call('ZADD', KEYS[1], unpack(leases)) end
return reply
