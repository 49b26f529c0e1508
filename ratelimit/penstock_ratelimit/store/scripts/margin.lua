-- Prelude: the factor that keeps the rate just below the limit learns from refusals. It is stored as it was at the last
-- refusal (or install) and regrows with time alone, so that quiet calls write nothing.

local MARGIN_CUT = 0.01 -- per episode
local MARGIN_FLOOR = 0.90 -- what is missing beyond is not rounding: others use the key, which remaining.lua handles
local MARGIN_GROWTH = 0.001 -- per minute without a refusal
local MINUTE_US = 60e6

-- A margin declared below the floor was meant to leave room, and stays.
local function margin_at(margin, moved_at, now)
  if margin < MARGIN_FLOOR then return margin end
  return math.min(1, margin + MARGIN_GROWTH * math.floor((now - moved_at) / MINUTE_US))
end

-- What others who use the key were promised (Quota.reserve) is no part of it: neither refusals nor time move that.
local function without_reserve(margin, reserve)
  return margin * (1 - (tonumber(reserve) or 0))
end

local function margin_cut(margin)
  return math.max(math.min(margin, MARGIN_FLOOR), margin - MARGIN_CUT)
end
