-- End a hold and a pause: a person says that the account is in order. It has to prove itself again, so few are sent at first.
-- An open breaker lets its probes through now. Processes with callers in line ask again within two seconds, and hear of it.
-- Prelude: clock.
--
-- KEYS[1]  the quota hash described in reserve.lua
-- ARGV[1]  now_us or ''
-- returns 1 when it was held, else 0

local key = KEYS[1]
local held = redis.call('HDEL', key, 'hold', 'hat') > 0
local row = redis.call('HMGET', key, 'nb', 'lt', 'config', 'ra', 'bs')
redis.call('HDEL', key, 'ok', 'nb')
if row[5] == '1' then redis.call('HSET', key, 'bu', 0) end
local now = math.max(clock_us(ARGV[1]), tonumber(row[2]) or 0)
if not row[1] or tonumber(row[1]) <= now or not row[3] then return held and 1 or 0 end

-- A refusal put the buckets and the slope at the end of its pause: that is now. The buckets stay empty.
redis.call('HSET', key, 'lt', string.format('%.0f', now))
if row[4] and tonumber(row[4]) > now then redis.call('HSET', key, 'ra', string.format('%.0f', now)) end
for dim in pairs(cjson.decode(row[3]).dims) do
  local bucket = redis.call('HMGET', key, 'r:' .. dim, 'b:' .. dim, 't:' .. dim)
  local empty = now + tonumber(bucket[2]) * 1000000 / tonumber(bucket[1])
  redis.call('HSET', key, 't:' .. dim, string.format('%.0f', math.min(tonumber(bucket[3]), empty)))
end
return held and 1 or 0
