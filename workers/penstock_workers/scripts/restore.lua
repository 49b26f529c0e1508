-- Returns messages whose lease has run out to the front of their queues: their worker is dead, frozen or cut off.
-- KEYS: unacked, unacked_index, penstock:parked:unknown, penstock:sweep:<unacked> (exists while a sweep would come too early)
-- ARGV: visibility timeout in seconds, key prefix, priority steps, how many at most, milliseconds until the next sweep
-- Returns how many were returned; -1 when another worker has swept lately

if not redis.call('SET', KEYS[4], '1', 'NX', 'PX', ARGV[5]) then return -1 end
local expired = string.format('%.6f', tonumber(now()) - tonumber(ARGV[1]))
local tags = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', expired, 'LIMIT', 0, ARGV[4])
for at = #tags, 1, -1 do -- backwards, so that the oldest one ends up in front
  local record = redis.call('HGET', KEYS[1], tags[at])
  if record then put_back(record, KEYS[3], ARGV[2], ARGV[3]) end
  drop(KEYS[1], KEYS[2], tags[at])
end
if #tags == tonumber(ARGV[4]) then redis.call('DEL', KEYS[4]) end -- more is waiting: let the next sweep come at once
return #tags
