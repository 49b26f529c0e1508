-- Put before settle.lua: results answer equal requests from now on, in the place of the claims that let their items be sent. Where
-- one is gone, because it was given up or the hash was full, nothing is kept: only lead.lua, which counts them, adds entries.

local kept = {} -- hash of lead.lua -> {digest, ...}, {place, ...}, {seconds for which each may answer, ...}

-- keep: {hash, digest, seconds}; scope: penstock:<job>:<gen>
local function keep_answer(keep, scope, doc)
  local book, digest, seconds = unpack(keep)
  kept[book] = kept[book] or {{}, {}, {}}
  local digests, places, ages = unpack(kept[book])
  digests[#digests + 1] = digest
  places[#places + 1] = string.sub(scope, #'penstock:' + 1) .. ':' .. doc
  ages[#ages + 1] = seconds
end

local function write_kept()
  if not next(kept) then return end
  local now = tonumber(redis.call('TIME')[1])
  for book, entries in pairs(kept) do
    local digests, places, ages = unpack(entries)
    local claims, written = redis.call('HMGET', book, unpack(digests)), {}
    for i, digest in ipairs(digests) do
      if claims[i] then
        written[#written + 1] = digest
        written[#written + 1] = string.format('a%d:%d:', now, now + ages[i]) .. places[i]
      end
    end
    if #written > 0 then redis.call('HSET', book, unpack(written)) end
  end
end

