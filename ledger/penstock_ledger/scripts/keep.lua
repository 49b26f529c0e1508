-- Put before settle.lua: a result answers equal requests from now on, in the place of the claim that let its item be sent. Where
-- that is gone, because it was given up or the hash was full, nothing is kept: only lead.lua, which counts them, adds entries.

-- keep: {hash of lead.lua, digest, seconds for which it may answer}; scope: penstock:<job>:<gen>
local function keep_answer(keep, scope, doc)
  local book, digest, seconds = unpack(keep)
  if redis.call('HEXISTS', book, digest) == 0 then return end
  local now = tonumber(redis.call('TIME')[1])
  local place = string.sub(scope, #'penstock:' + 1) .. ':' .. doc
  redis.call('HSET', book, digest, string.format('a%d:%d:', now, now + seconds) .. place)
end

