-- Prelude: one breaker for the whole fleet. Its generation grows at each opening and at each half-opening; wins and
-- losses of calls that were granted in an older generation say nothing about now and do not count.

local CLOSED, OPEN, HALF_OPEN = 0, 1, 2
local WINDOW_US = 15e6
local ENOUGH = 20 -- answers in the window before a share of losses means anything
local LOST_SHARE = 0.5
local LOST_IN_A_ROW = 8
local OPEN_US, LONGEST_OPEN_US, SHORTEST_OPEN_US = 5e6, 120e6, 1e6
local PROBES = 3 -- for the whole fleet; most of them decide: of a server that fails one call in twenty, one probe says nothing
local PROBES_DECIDE_US = 60e6 -- probes without an answer are let through again; those of a dead process by heartbeat.lua, sooner
local PROBE_RECHECK_US = 1e6 -- others ask again so often whether the probes have decided

local BREAKER_FIELDS = {'bs', 'bg', 'bu', 'bk', 'bp', 'bw', 'be', 'bt', 'bat', 'br'}

-- From the values of BREAKER_FIELDS, which stand in `state` after the first `offset`. A closed one without a report,
-- the usual case, is not read further: that is time of a Redis that all share.
local function stored_breaker(state, offset, reported)
  local is = tonumber(state[offset + 1]) or CLOSED
  if is == CLOSED and not reported then return {state = is, generation = tonumber(state[offset + 2]) or 0} end
  local value = {}
  for i = 1, #BREAKER_FIELDS do value[i] = tonumber(state[offset + i]) or 0 end
  return {state = value[1], generation = value[2], turns_at = value[3], opened = value[4], probes = value[5], won = value[6],
    losses = value[7], total = value[8], window_at = value[9], row = value[10]}
end

local function breaker_values(b)
  return {b.state, b.generation, b.turns_at, b.opened, b.probes, b.won, b.losses, b.total, b.window_at, b.row}
end

-- Jitter of its own: math.random repeats itself in every script, and fleets of different quotas must not come back at once.
local function jitter(seed)
  return tonumber(string.sub(redis.sha1hex(seed), 1, 8), 16) / 2 ^ 32
end

local function open(b, key, now)
  b.generation = b.generation + 1
  local longest = math.min(LONGEST_OPEN_US, OPEN_US * 2 ^ b.opened)
  local open_us = math.max(SHORTEST_OPEN_US, longest * jitter(key .. ':' .. now .. ':' .. b.generation))
  b.state, b.turns_at, b.opened = OPEN, now + math.floor(open_us), b.opened + 1
end

local function half_open(b, now)
  b.state, b.generation, b.turns_at, b.probes, b.won, b.losses = HALF_OPEN, b.generation + 1, now, PROBES, 0, 0
end

local function close(b, now)
  b.state, b.opened, b.losses, b.total, b.row, b.window_at = CLOSED, 0, 0, 0, 0, now
end

local function count_closed(b, key, wins, losses, now)
  if now - b.window_at > WINDOW_US then b.losses, b.total, b.window_at = 0, 0, now end
  b.losses, b.total = b.losses + losses, b.total + wins + losses
  b.row = wins == 0 and b.row + losses or 0
  local too_many = b.total >= ENOUGH and b.losses >= LOST_SHARE * b.total
  if too_many or b.row >= LOST_IN_A_ROW then open(b, key, now) end
end

-- A 429 to a probe shows that the server answers and decides nothing: the probe is free again. So is one of which nothing is
-- known: its item had ended meanwhile, say. Else three of these would keep the fleet waiting for a minute, and so would the next.
local function count_probes(b, key, report, now)
  local free = report.throttled + report.strays + report.ramp + report.unused
  b.won, b.losses, b.probes = b.won + report.wins, b.losses + report.losses, math.min(PROBES, b.probes + free)
  if b.losses > PROBES / 2 then open(b, key, now) elseif b.won > PROBES / 2 then close(b, now) end
end

-- What a report and the passing of time make of it; true when it has just closed again.
local function move_breaker(b, key, report, now)
  local was = b.state
  if report and report.generation == b.generation then
    if b.state == CLOSED then count_closed(b, key, report.wins, report.losses, now)
    elseif b.state == HALF_OPEN then count_probes(b, key, report, now) end
  end
  if b.state == OPEN and now >= b.turns_at then half_open(b, now) end
  if b.state == HALF_OPEN and now - b.turns_at >= PROBES_DECIDE_US then b.turns_at, b.probes = now, PROBES end
  return was == HALF_OPEN and b.state == CLOSED
end
