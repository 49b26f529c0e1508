-- Put a quota's terms in force, with an EMPTY bucket where Redis knew nothing (first use, FLUSHALL, a restart without data).
--
-- KEYS[1]  the quota hash described in reserve.lua
-- ARGV  1 now_us or ''
--       2 which terms may be replaced: 'any' (a process that starts) | '' (none: only fill what is missing) | a version (compare and set)
--       3 '1' empties the bucket in any case (after an outage, in which unshared work was done), else '0'
--       4 terms as JSON   5 n dimensions, then n times: dim, units per second, burst, cap
-- returns {version, config} as now in force
-- Replaced terms keep the bucket's level in units (a full bucket stays at most full), so a change never hands out a burst.

local stored = redis.call('HMGET', KEYS[1], 'v', 'config', 'lt', 'nb')
local version, config = stored[1], stored[2]
local replaces = not version or (config ~= ARGV[4] and (ARGV[2] == 'any' or ARGV[2] == version))
local now, back = guarded(clock_us(ARGV[1]), tonumber(stored[3]) or 0)

local function put(field, value)
  redis.call('HSET', KEYS[1], field, string.format('%.0f', value))
end

local old = {}
if version then
  for dim in pairs(cjson.decode(config).dims) do
    local row = redis.call('HMGET', KEYS[1], 'r:' .. dim, 'b:' .. dim, 't:' .. dim)
    local rate, burst = tonumber(row[1]) / 1000000, tonumber(row[2])
    local tat = math.max(tonumber(row[3]) - back, now)
    if ARGV[3] == '1' then tat = math.max(tat, now + burst / rate) end
    old[dim] = {level = burst - (tat - now) * rate}
    if replaces then
      redis.call('HDEL', KEYS[1], 'r:' .. dim, 'b:' .. dim, 'c:' .. dim, 't:' .. dim, 'm:' .. dim)
    else
      put('t:' .. dim, tat)
    end
  end
  put('nb', (tonumber(stored[4]) or 0) - back)
end
put('lt', now)
if not replaces then return {version, config} end

for i = 1, tonumber(ARGV[5]) do
  local dim, rate, burst, cap = ARGV[2 + 4 * i], ARGV[3 + 4 * i], ARGV[4 + 4 * i], ARGV[5 + 4 * i]
  local level = old[dim] and math.min(old[dim].level, tonumber(burst)) or 0
  redis.call('HSET', KEYS[1], 'r:' .. dim, rate, 'b:' .. dim, burst, 'c:' .. dim, cap)
  put('t:' .. dim, now + (tonumber(burst) - level) / (tonumber(rate) / 1000000))
end
local counter = version and tonumber(string.match(version, '^%d+')) or 0
version = string.format('%d:%s', counter + 1, redis.sha1hex(ARGV[4]))
redis.call('HSET', KEYS[1], 'v', version, 'config', ARGV[4])
return {version, ARGV[4]}
