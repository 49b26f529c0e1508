-- Put a quota's terms in force, with an EMPTY bucket where Redis knew nothing (first use, FLUSHALL, a restart without data).
-- Preludes: clock, slope, margin.
--
-- KEYS[1]  the quota hash described in reserve.lua
-- ARGV  1 now_us or ''
--       2 which terms may be replaced: 'any' (a process that starts) | '' (none: only fill what is missing) |
--         a version (compare and set)
--       3 '1' empties the bucket in any case (after an outage, in which unshared work was done), else '0'
--       4 terms as JSON   5 fingerprint of the account, '' = unknown   6 declared margin
--       7 n dimensions   8 part left to others, '0' = none, then n times: dim, units per second, burst, cap
-- returns {version, config} as now in force
-- Replaced terms keep the bucket's level in units (a full bucket stays at most full), so a change never hands out a burst.
-- Another account, or other terms, end a hold: it was about what is no longer so.

local key, config_now, account = KEYS[1], ARGV[4], ARGV[5]
local stored = redis.call('HMGET', key, 'v', 'config', 'lt', 'acct', 'mg', 'mga', 'rf', 'ra', 'rd', 'rs')
if stored[1] and not stored[5] then -- written by a release that knew no margin: start over, with an empty bucket
  redis.call('DEL', key)
  stored = {}
end
local version, config = stored[1], stored[2]
local replaces = not version or (config ~= config_now and (ARGV[2] == 'any' or ARGV[2] == version))
local last_seen = tonumber(stored[3]) or 0
local now, back = guarded(clock_us(ARGV[1]), last_seen)
local old_terms = version and cjson.decode(config) or {dims = {}}
local old_dims = {}
for dim in pairs(old_terms.dims) do old_dims[#old_dims + 1] = dim end
if back > 0 then
  move_back(key, old_dims, back)
  stored = redis.call('HMGET', key, 'v', 'config', 'lt', 'acct', 'mg', 'mga', 'rf', 'ra', 'rd', 'rs')
  last_seen = now
end
local margin = version and margin_at(tonumber(stored[5]), tonumber(stored[6]), now)
local slope = stored_slope(stored[7], stored[8], stored[9])

local function put_us(field, us)
  redis.call('HSET', key, field, string.format('%.0f', us))
end

-- the level of each bucket in units, brought up to now
local level = {}
local function bring_up_to_now()
  local lost = now - last_seen - work_between(slope, last_seen, now)
  for _, dim in ipairs(old_dims) do
    local row = redis.call('HMGET', key, 'r:' .. dim, 'b:' .. dim, 't:' .. dim)
    local usable = without_reserve(margin, stored[10])
    local rate, burst = usable * tonumber(row[1]) / 1000000, usable * tonumber(row[2])
    local tat = math.max(tonumber(row[3]) + lost, now)
    if ARGV[3] == '1' then tat = math.max(tat, now + burst / rate) end
    level[dim] = burst - (tat - now) * rate
    put_us('t:' .. dim, tat)
  end
end

-- what belongs to limits that are no more; counters stay, because tickets and readings of before refer to them
local function forget_old_dims()
  for _, dim in ipairs(old_dims) do
    redis.call('HDEL', key, 'r:' .. dim, 'b:' .. dim, 'c:' .. dim, 't:' .. dim, 'm:' .. dim,
      'p:' .. dim, 'f:' .. dim, 'sr:' .. dim, 'sk:' .. dim, 'sa:' .. dim)
  end
end

local function put_in_force()
  if not version or old_terms.margin ~= tonumber(ARGV[6]) then
    margin = tonumber(ARGV[6])
    redis.call('HSET', key, 'mg', ARGV[6])
    put_us('mga', now)
  end
  if ARGV[8] == '0' then redis.call('HDEL', key, 'rs') else redis.call('HSET', key, 'rs', ARGV[8]) end
  local usable = without_reserve(margin, ARGV[8])
  for i = 1, tonumber(ARGV[7]) do
    local dim, rate, burst, cap = ARGV[5 + 4 * i], ARGV[6 + 4 * i], ARGV[7 + 4 * i], ARGV[8 + 4 * i]
    local full = usable * tonumber(burst)
    local missing = full - (level[dim] and math.min(level[dim], full) or 0)
    redis.call('HSET', key, 'r:' .. dim, rate, 'b:' .. dim, burst, 'c:' .. dim, cap)
    put_us('t:' .. dim, now + missing / (usable * tonumber(rate) / 1000000))
  end
  local generation = version and tonumber(string.match(version, '^%d+')) or 0
  version, config = string.format('%d:%s', generation + 1, redis.sha1hex(config_now)), config_now
  redis.call('HSET', key, 'v', version, 'config', config)
end

bring_up_to_now()
put_us('lt', now)
local another = account ~= '' and account ~= stored[4]
if another then redis.call('HSET', key, 'acct', account) end
if replaces or another then redis.call('HDEL', key, 'hold', 'hat', another and 'ok' or 'hat') end
if replaces then
  forget_old_dims()
  put_in_force()
end
return {version, config}
