-- The delivery tags of a stretch of a list of raw messages, without sending the messages over the network.
--
-- KEYS[1] <queue> or penstock:<job>:parked   list of raw messages
-- ARGV[1], ARGV[2] first and last index, at most 250 messages, so that other clients wait a few milliseconds at most
-- Returns {messages seen, tag, tag, …}; a message without a tag counts as seen and has none
--
-- Inside an item's body the quotes of a JSON text are escaped, so the pattern finds the envelope's own tag only. Our
-- envelopes end with it; the whole message is searched only when the end has none.

local raws = redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[2])
local answer = {#raws}
for _, raw in ipairs(raws) do
  local pattern = '"delivery_tag":%s*"([^"]*)"'
  local tag = string.match(raw, pattern, -512) or string.match(raw, pattern)
  if tag then answer[#answer + 1] = tag end
end
return answer
