-- Prelude: what the provider says is left corrects the quota's own account of it, because others may use the same key.
--
-- Fields of the quota hash, per dimension, written and read only here:
--   p:<dim>  largest remaining ever seen: what is known of the provider's depth
--   sr:<dim> sk:<dim> sa:<dim>  the newest reading: remaining, the quota's counter then, when the provider took that request, us
--   f:<dim>  units per second that others took from the provider's bucket, lately
--
-- The provider's level once all that was granted is spent: remaining - charged since + refill since. That is the quota's own
-- level plus the depth that is left alone, so a healthy quota of any depth is not touched, however old the reading.
-- Only downward: the quota's bucket refills by itself as fast as the provider's, so what was held back comes back in time.

local HEADROOM_US = 2e6 -- left to others: what they take between two readings is not known yet
local HEADROOM_PART = 0.3 -- of the depth, where that is less: of a depth of one second the burst takes half, jitter the rest
local SCARCE_PART = 0.5 -- of the depth: below, what others took lately is expected to go on
local FOREIGN_STEP_US = 0.5e6 -- pairs of readings closer than this are mostly jitter
local FOREIGN_MEMORY_US = 10e6
local LONGEST_PUSH_US = 10e6 -- then a request is tried, whatever an odd header says

local function stored_reading(key, dim)
  local row = redis.call('HMGET', key, 'p:' .. dim, 'f:' .. dim, 'sr:' .. dim, 'sk:' .. dim, 'sa:' .. dim)
  return {depth = tonumber(row[1]) or 0, foreign = tonumber(row[2]) or 0,
    remaining = tonumber(row[3]), counter = tonumber(row[4]), at = tonumber(row[5])}
end

-- units per us that others took between two readings; a bucket that was full in between let its refill run over
local function taken_by_others(last, remaining, counter, at, rate, depth)
  local passed = at - last.at
  local expected = math.min(depth, last.remaining + rate * passed - (counter - last.counter))
  return math.max(-rate, math.min(rate, (expected - remaining) / passed))
end

-- Returns the provider's level beyond the headroom, or nil when a newer reading is known; keeps what it learned.
local function spendable(key, dim, rate, charged, now, remaining, counter, age)
  local last, at = stored_reading(key, dim), now - age
  if last.at and at < last.at then return nil end
  local depth = math.max(last.depth, remaining)
  local foreign = last.foreign / 1e6
  if not last.at or at - last.at >= FOREIGN_STEP_US then
    if last.at then
      local part = math.min(1, (at - last.at) / FOREIGN_MEMORY_US)
      foreign = foreign + part * (taken_by_others(last, remaining, counter, at, rate, depth) - foreign)
    end
    redis.call('HSET', key, 'sr:' .. dim, remaining, 'sk:' .. dim, counter, 'sa:' .. dim, string.format('%.0f', at),
      'p:' .. dim, depth, 'f:' .. dim, string.format('%.6g', foreign * 1e6))
  end
  local refill = rate
  if remaining < SCARCE_PART * depth then refill = rate - math.max(0, foreign) end
  local level = remaining - (charged - counter) + refill * age
  return level - math.min(HEADROOM_US * rate, HEADROOM_PART * depth)
end
