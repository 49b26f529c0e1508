-- RabbitMQ has messages safe: from now on no lease is needed to keep them there. Those that a worker has taken meanwhile,
-- and those whose lease was lost, are passed over.
-- KEYS: unacked_index, penstock:relayed:<queue>
-- ARGV: visibility timeout in seconds, then pairs of delivery tag and lease time as the caller saw it last
-- Returns how many

local kept = {}
for at = 2, #ARGV, 2 do
  local tag = ARGV[at]
  if redis.call('ZSCORE', KEYS[2], tag) and is_held(KEYS[1], tag, ARGV[at + 1], ARGV[1]) then
    kept[#kept + 1], kept[#kept + 2] = '+inf', tag
  end
end
if #kept > 0 then redis.call('ZADD', KEYS[1], unpack(kept)) end
return #kept / 2
