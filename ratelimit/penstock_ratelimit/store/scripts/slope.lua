-- Prelude: after a restart the rate comes back along a slope; a provider that says "too steep" flattens it.
--
-- A slope is {share, at, doubling}: the share of the rate until time `at`, doubling every `doubling` us until it is whole.
-- Buckets are kept in microseconds of the WHOLE rate ("work"). While the share is below one, less work than time passes,
-- so the same arithmetic stays exact, starts stay first come first served, and no interval exceeds r*t + b.

local RESTART_PAUSE_US = 10e6 -- a longer pause is a restart: providers with acceleration limits look at minutes
local RAMP_CUT = 0.7 -- of the share, once per episode
local RAMP_FLOOR = 0.05 -- of the rate: slow enough for any ramp, and the quota still moves
local RAMP_DOUBLING_US = math.floor(15 * 60e6 * math.log(2) / math.log(1.5)) -- 1.5 times in 15 minutes, as OpenAI documents
local EPISODE_US = 5e6 -- refusals of one overshoot come in this long: a second of tickets ahead, a second to report, and travel

local function share_at(slope, at)
  if not slope then return 1 end
  return math.min(1, slope.share * 2 ^ (math.max(0, at - slope.at) / slope.doubling))
end

local function whole_at(slope)
  return slope.at + slope.doubling * math.log(1 / slope.share) / math.log(2)
end

-- work done from slope.at until a time; negative before it
local function work_at(slope, at)
  if at <= slope.at then return (at - slope.at) * slope.share end
  local whole, scale = whole_at(slope), slope.doubling / math.log(2)
  if at <= whole then return scale * (share_at(slope, at) - slope.share) end
  return scale * (1 - slope.share) + at - whole
end

-- the time at which so much work is done: the inverse of work_at
local function time_of(slope, work)
  if work <= 0 then return slope.at + work / slope.share end
  local scale = slope.doubling / math.log(2)
  local rest = work - scale * (1 - slope.share)
  if rest >= 0 then return whole_at(slope) + rest end
  return slope.at + scale * math.log(1 + work / (scale * slope.share))
end

local function work_between(slope, from, to)
  if not slope then return to - from end
  return work_at(slope, to) - work_at(slope, from)
end

local function time_after(slope, from, work)
  if not slope then return from + work end
  return time_of(slope, work_at(slope, from) + work)
end

local function stored_slope(share, at, doubling)
  if not share then return nil end
  return {share = tonumber(share), at = tonumber(at), doubling = tonumber(doubling)}
end

-- A restart at a time from now on. A flatter slope in force stays: its share waits for the restart and then grows on,
-- because the provider itself asked for it.
local function restarted(slope, now, at, start, doubling)
  if slope and slope.doubling > doubling and share_at(slope, now) < 1 then
    return {share = share_at(slope, now), at = math.max(at, slope.at), doubling = slope.doubling}
  end
  local share = math.min(start, share_at(slope, at))
  return share < 1 and {share = share, at = at, doubling = doubling} or nil
end

local function flattened(slope, now, earliest)
  if slope and slope.doubling == RAMP_DOUBLING_US and now < slope.at + EPISODE_US then return slope end
  return {share = math.max(RAMP_FLOOR, RAMP_CUT * share_at(slope, now)), at = earliest, doubling = RAMP_DOUBLING_US}
end
