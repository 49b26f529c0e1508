-- Ask for requests whether an equal one is answered or on its way. Where neither is so the caller sends it, and has
-- the claim for as long as it asks again. settle.lua puts the answer in the claim's place.
--
-- KEYS none; computed: penstock:<job>:answers, penstock:answers:<tenant>
--   hash digest -> "c<since>:<until>:<owner>" a claim, or "a<made>:<until>:<place>" an answer: <job>:<gen>:<document id>.
--   Times are seconds of this server's clock
-- ARGV[1] owner, ARGV[2] seconds that a claim lasts, ARGV[3] most entries of a hash
-- ARGV[4] msgpack of two lists (at most 500 requests in all): asked {hash, seconds after which it is forgotten unused, {digest, ...},
-- {oldest answer in seconds, ...}}, and released {hash, digest}
-- Returns for each that was asked: -1 send it, else milliseconds for which another has been at it, or the place (a string)
--
-- A call of Redis from Lua costs as much as what it does: hence one HMGET and one HSET per hash.

local LOOKED_AT = 16 -- entries of a full hash, at random: all that have ended go, else those that end first, at most half of them
local CLOCK_SLACK_S = 60 -- what was written by a clock that is further ahead does not count

local owner, lease, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local asked, released = unpack(cmsgpack.unpack(ARGV[4]))
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000

local function read(value)
  local kind, since, till, what = string.match(value or '', '^(%a)([%d.]+):([%d.]+):(.*)$')
  return kind, tonumber(since), tonumber(till), what
end

-- Removes entries of a full hash, at least one; returns how many.
local function make_room(book, wanted)
  local ended, others = {}, {}
  local some = redis.call('HRANDFIELD', book, LOOKED_AT, 'WITHVALUES')
  for i = 1, #some, 2 do
    local kind, _, till = read(some[i + 1])
    if not till or till <= now then
      ended[#ended + 1] = some[i]
    else
      if kind == 'c' then till = till + 1e12 end -- a claim goes last: a call is on its way for it
      others[#others + 1] = {till, some[i]}
    end
  end
  table.sort(others, function(one, other) return one[1] < other[1] end)
  for i = 1, math.max(1, math.min(wanted, #others / 2)) - #ended do ended[#ended + 1] = others[i][2] end
  return redis.call('HDEL', book, unpack(ended))
end

for _, entry in ipairs(released) do
  local book, digest = unpack(entry)
  local kind, _, _, what = read(redis.call('HGET', book, digest))
  if kind == 'c' and what == owner then redis.call('HDEL', book, digest) end
end

local answers = {}

-- Whether the caller sends it; else the answer is noted.
local function leads(value, oldest)
  local kind, since, till, what = read(value)
  local is_held = kind and till > now and since < now + CLOCK_SLACK_S
  if is_held and kind == 'a' and since > now - oldest then
    answers[#answers + 1] = what
    return false
  end
  if is_held and kind == 'c' and what ~= owner and till < now + lease + CLOCK_SLACK_S then
    answers[#answers + 1] = math.max(0, math.floor((now - since) * 1000))
    return false
  end
  answers[#answers + 1] = -1
  return true, is_held and kind == 'c' and since or now -- its own claim is as old as it was
end

for _, ask in ipairs(asked) do
  local book, idle, digests, oldests = unpack(ask)
  local values = redis.call('HMGET', book, unpack(digests))
  local claims, new = {}, 0
  for i, digest in ipairs(digests) do
    local does, since = leads(values[i], oldests[i])
    if does then
      claims[#claims + 1] = digest
      claims[#claims + 1] = string.format('c%.3f:%.3f:%s', since, now + lease, owner)
      if not values[i] then new = new + 1 end
    end
  end
  if #claims > 0 then
    local over = new > 0 and redis.call('HLEN', book) + new - most or 0
    while over > 0 and redis.call('EXISTS', book) == 1 do over = over - make_room(book, over) end
    redis.call('HSET', book, unpack(claims))
    redis.call('EXPIRE', book, idle)
  end
end
return answers
