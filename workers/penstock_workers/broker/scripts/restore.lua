-- Returns messages whose lease has run out to the front of their queues: their worker is dead, frozen or cut off.
-- KEYS: unacked, unacked_index, penstock:parked:unknown, penstock:sweep:<unacked> (exists while a sweep would come too early)
-- computed: penstock:sweep:<unacked>:ahead  since when leases of a time to come were seen, unix seconds
-- ARGV: visibility timeout in seconds, key prefix, priority steps, how many at most, milliseconds until the next sweep
-- Returns how many were returned; -1 when another worker has swept lately

-- The server's clock may step back (a failover, NTP). Its own expiry times do not step with it: a pause that is longer than
-- anyone asks for was set before.
if redis.call('PTTL', KEYS[4]) > 2 * tonumber(ARGV[5]) then redis.call('DEL', KEYS[4]) end
if not redis.call('SET', KEYS[4], '1', 'NX', 'PX', ARGV[5]) then return -1 end
local time, timeout = tonumber(now()), tonumber(ARGV[1])
local expired = string.format('%.6f', time - timeout)
local tags = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', expired, 'LIMIT', 0, ARGV[4])

-- Leases from before the clock stepped back lie ahead of it. A live worker renews its own within a timeout from when they are
-- first seen here; those that lie ahead even then are of the dead.
if #tags < tonumber(ARGV[4]) then
  local from = string.format('(%.6f', time + timeout)
  local ahead = redis.call('ZRANGEBYSCORE', KEYS[2], from, '(+inf', 'LIMIT', 0, tonumber(ARGV[4]) - #tags)
  local noted = KEYS[4] .. ':ahead'
  local since = tonumber(redis.call('GET', noted) or '')
  if #ahead == 0 then
    if since then redis.call('DEL', noted) end
  elseif timeout == 0 or (since and since <= time and time - since > timeout) then
    for _, tag in ipairs(ahead) do tags[#tags + 1] = tag end
  elseif not since or since > time then
    redis.call('SET', noted, string.format('%.6f', time))
  end
end

for at = #tags, 1, -1 do -- backwards, so that the oldest one ends up in front
  local record = redis.call('HGET', KEYS[1], tags[at])
  if record then put_back(record, KEYS[3], ARGV[2], ARGV[3]) end
  drop(KEYS[1], KEYS[2], tags[at])
end
if #tags == tonumber(ARGV[4]) then redis.call('DEL', KEYS[4]) end -- more is waiting: let the next sweep come at once
return #tags
