-- Takes messages that RabbitMQ has delivered: each becomes a message that the caller holds, or is found to be a copy.
-- KEYS: unacked, unacked_index (the caller's), then for each queue: unacked, unacked_index, penstock:relayed:<queue>
-- ARGV: for each message: number of its queue, delivery tag, and its record if it comes from a client that sent it to
--       RabbitMQ itself; '' if a shovel did, which has recorded it
-- Returns {lease time, and for each message 1 when it is the caller's from now on, 0 when it is a copy to be dropped}

local unacked, index = KEYS[1], KEYS[2]
local started = now()
local reply, leases = {started}, {}

-- The worker that removes the tag from the relayed ones has the message. Its record may be gone when Redis forgot, or when the
-- shovel's lease ended and the message was put back into its list: then this is a copy.
local function take_relayed(theirs, their_index, relayed, tag)
  if redis.call('ZREM', relayed, tag) == 0 then return false end
  local record = redis.call('HGET', theirs, tag)
  if not record then return false end
  if theirs ~= unacked then
    drop(theirs, their_index, tag)
    redis.call('HSET', unacked, tag, record)
  end
  return true
end

for at = 1, #ARGV, 3 do
  local first, tag, record = ARGV[at] * 3, ARGV[at + 1], ARGV[at + 2]
  local is_ours
  if record == '' then
    is_ours = take_relayed(KEYS[first], KEYS[first + 1], KEYS[first + 2], tag)
  else
    is_ours = redis.call('HSETNX', unacked, tag, record) == 1
  end
  if is_ours then leases[#leases + 1], leases[#leases + 2] = started, tag end
  reply[#reply + 1] = is_ours and 1 or 0
end
if #leases > 0 then redis.call('ZADD', index, unpack(leases)) end
return reply
