-- Look at one quota without touching it: all of its keys at one moment, and what the stored times mean now.
-- Preludes: clock, slope, margin.
--
-- KEYS  1 the quota hash described in reserve.lua   2 :w processes   3 :s what they say   4 :l what was learned
-- ARGV  1 now_us or ''   2 how long a heartbeat counts, us   3 most processes to return   4 most learned keys to return
-- returns {} when there is no such quota, else {now_us, margin in force, share of the rate, processes alive,
--          the hash (field, value, ...), levels (dim, units, ...), what processes say, learned (key, sketch, ...)}

local hash = redis.call('HGETALL', KEYS[1])
local field = {}
for i = 1, #hash, 2 do field[hash[i]] = hash[i + 1] end
if not field.v or not field.mg then return {} end

-- a clock that stepped back stands still here: moving times is for those who write
local last_seen = tonumber(field.lt)
local now = math.max(clock_us(ARGV[1]), last_seen)
local margin = margin_at(tonumber(field.mg), tonumber(field.mga), now)
local usable = without_reserve(margin, field.rs)
local slope = stored_slope(field.rf, field.ra, field.rd)

local function us(number)
  return string.format('%.0f', number)
end

-- as in install.lua: what the slope kept from being done since is not there to be spent
local lost = now - last_seen - work_between(slope, last_seen, now)
local levels = {}
for dim in pairs(cjson.decode(field.config).dims) do
  local rate, burst = usable * tonumber(field['r:' .. dim]) / 1000000, usable * tonumber(field['b:' .. dim])
  local tat = math.max(tonumber(field['t:' .. dim]) + lost, now)
  levels[#levels + 1] = dim
  levels[#levels + 1] = string.format('%.3f', burst - (tat - now) * rate)
end

local alive_since = us(now - tonumber(ARGV[2]))
local alive = redis.call('ZCOUNT', KEYS[2], alive_since, '+inf')
local names = redis.call('ZRANGEBYSCORE', KEYS[2], alive_since, '+inf', 'LIMIT', 0, ARGV[3])
local said = #names > 0 and redis.call('HMGET', KEYS[3], unpack(names)) or {}
for i = 1, #said do said[i] = said[i] or '' end
local learned = redis.call('HSCAN', KEYS[4], 0, 'COUNT', ARGV[4])[2]

return {us(now), tostring(margin), tostring(share_at(slope, now)), alive, hash, levels, said, learned}
