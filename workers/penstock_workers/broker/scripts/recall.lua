-- Returns relayed messages to the front of their queue's list, those that no worker has taken: RabbitMQ refused them, or has
-- lost them, or is not the broker any more. A copy that it has after all is dropped when a worker would take it.
-- KEYS: unacked, unacked_index, penstock:parked:unknown, penstock:relayed:<queue>
-- ARGV: key prefix, priority steps, then delivery tags
-- Returns how many were returned

local returned = 0
for at = #ARGV, 3, -1 do -- backwards, so that the first one ends up in front
  local tag = ARGV[at]
  if redis.call('ZREM', KEYS[4], tag) == 1 then
    local record = redis.call('HGET', KEYS[1], tag)
    drop(KEYS[1], KEYS[2], tag)
    if record then
      put_back(record, KEYS[3], ARGV[1], ARGV[2])
      returned = returned + 1
    end
  end
end
return returned
