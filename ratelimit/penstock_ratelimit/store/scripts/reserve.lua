-- Hand out start times for a batch of items, all dimensions at once (GCRA), and take in what a process has to say: settlements,
-- a pause, what it saw of the provider. One atomic step; preludes: names, clock, slope, margin, breaker, remaining.
--
-- KEYS[1]  <prefix>{q:<id>}  hash, no expiry, one per quota; times in us of the server's clock. Written here unless said:
--   v        version of the terms in force: "<counter>:<sha1 of config>"   written by install
--   config   the terms in force, as JSON                                   written by install
--   acct     fingerprint of the account                                    written by install
--   r:<dim>  units per second, without the margin    b:<dim>  burst in units    c:<dim>  largest cost of one item (for readers;
--            clients clip)                                                 written by install
--   t:<dim>  theoretical arrival time: when the bucket is full again, in work of the whole rate    also written by install
--   m:<dim>  mean time that one item takes of this dimension, us: the last 50 items of the fleet
--   k:<dim>  units charged so far, settlements and refunds included
--   p: f: sr: sk: sa:<dim>  what the provider said is left, see remaining.lua
--   h:<dim>  when a header last stated its limit                             written by confirm
--   n        tickets granted so far, here or by processes that may start without asking        ng  latest start time granted
--   nb       no request starts before this time
--   lt       latest time seen                                              also written by install
--   rs       part of every limit left to others; absent = none              written by install
--   mg mga   margin at the last 429 or install, and when that was          also written by install
--   rf ra rd the slope, see slope.lua; absent = whole rate
--   bs bg    breaker: 0 closed, 1 open, 2 half-open; generation. bu open until, half-open since   bk times opened in a row
--            bp probes left   bw probes won   be bt bat losses (of probes, too), answers, start of the window   br losses in a row
--   hold hat why the account is held, since when                           removed by lift and install
--   ok       time of the last good answer                                  removed by lift
--   rb       retry budget, 0 to 100
--   x:throttled x:ramp x:failed x:held  how often so far
--
-- KEYS[2]  <prefix>{q:<id>}:w  the processes that share the quota, described in heartbeat.lua
--
-- ARGV     by name: arg.<name>, then lists from LISTS_AT on. Names, order and meaning: quota_hash.py (Arguments), whose prelude
--          stands before this script. No items: settle and report only.
--
-- returns  the fields of quota_hash.py (Reply) in the order of REPLY, then the counters of the dimensions before the first
--          item, then the wait of each item granted, in us
--         {-1}                       no such quota: install first (Redis forgot); nothing was done
--         {-3, version, config}      other terms are in force: adopt them; nothing was done
-- Guarantee per dimension: in any interval of t seconds, starts cost at most r*t + b (+ one item larger than b).
-- An item larger than b needs a full bucket and then leaves a debt. Start times never decrease between items of a call.

local LEARNING_RATE = 0.02
local FULL_BUDGET = 100
local WIN_EARNS = 0.1 -- so that retries are at most a tenth of what works
local PROVEN_US = 3600e6
local HOLD_RECHECK_US = 5e6 -- it may have been lifted
local ROW = 5 -- fields per dimension

local key, version, max_ahead, fair_share = KEYS[1], arg.version, tonumber(arg.max_ahead_us), tonumber(arg.share_us)
local n, items = tonumber(arg.dims), tonumber(arg.items)
local first_level = LISTS_AT + 2 * n
local first_cost = first_level + 4 * tonumber(arg.remaining)
local dims = {}
for i = 1, n do dims[i] = ARGV[LISTS_AT + 2 * (i - 1)] end

-- --- read ----------------------------------------------------------------------------------------------------------

local fields = {'v', 'lt', 'nb', 'n', 'ng', 'mg', 'mga', 'rf', 'ra', 'rd', 'hold', 'ok', 'rb', 'rs', unpack(BREAKER_FIELDS)}
local before_breaker, shared_fields = #fields - #BREAKER_FIELDS, #fields
for i = 1, n do
  local dim, at = dims[i], #fields
  fields[at + 1], fields[at + 2], fields[at + 3] = 'r:' .. dim, 'b:' .. dim, 't:' .. dim
  fields[at + 4], fields[at + 5] = 'm:' .. dim, 'k:' .. dim
end
local state = redis.call('HMGET', key, unpack(fields))
if not state[1] then return {-1} end
if state[1] ~= version then return {-3, state[1], redis.call('HGET', key, 'config')} end

local last_seen = tonumber(state[2])
local now, back = guarded(clock_us(arg.now_us), last_seen)
if back > 0 then
  move_back(key, dims, back)
  state = redis.call('HMGET', key, unpack(fields))
  last_seen = now
end

local pause_at, granted_ever, last_start = tonumber(state[3]) or 0, tonumber(state[4]) or 0, tonumber(state[5])
local margin = margin_at(tonumber(state[6]), tonumber(state[7]), now)
local usable = without_reserve(margin, state[14])
local slope = stored_slope(state[8], state[9], state[10])
local hold, proven_at, budget = state[11] or '', tonumber(state[12]), tonumber(state[13]) or FULL_BUDGET
local report = arg.reports == '1' and {throttled = tonumber(arg.throttled), ramp = tonumber(arg.ramp), wins = tonumber(arg.wins),
  losses = tonumber(arg.losses), generation = tonumber(arg.generation), retries = tonumber(arg.retries), hold = arg.hold,
  strays = tonumber(arg.strays), unused = tonumber(arg.unused)}
local breaker = stored_breaker(state, before_breaker, report)

local writes = {'lt', string.format('%.0f', now)}
local function put(field, text)
  writes[#writes + 1] = field
  writes[#writes + 1] = text
end
local function put_us(field, us) -- not tostring, which keeps 14 digits
  put(field, string.format('%.0f', us))
end

-- --- take in -------------------------------------------------------------------------------------------------------

local limit, rate, burst, tat, mean, charged = {}, {}, {}, {}, {}, {}

local function settle()
  -- what the slope kept from being done since the last call
  local lost = now - last_seen - work_between(slope, last_seen, now)
  for i = 1, n do
    local row, settlement = shared_fields + ROW * (i - 1), tonumber(ARGV[LISTS_AT + 2 * (i - 1) + 1])
    limit[i] = tonumber(state[row + 1]) / 1000000
    rate[i] = limit[i] * usable
    burst[i] = tonumber(state[row + 2]) * usable
    -- a refund is worth nothing once the bucket is full again: the provider's own would have run over too
    tat[i] = math.max(math.max(tonumber(state[row + 3]) + lost, now) + settlement / rate[i], now)
    mean[i] = tonumber(state[row + 4])
    charged[i] = (tonumber(state[row + 5]) or 0) + settlement
  end
end

local function apply_remaining()
  for at = first_level, first_cost - 4, 4 do
    local i = tonumber(ARGV[at])
    local level = spendable(key, dims[i], limit[i], charged[i], now,
      tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]))
    if level and level < burst[i] then
      local push = math.min((burst[i] - level) / rate[i], burst[i] / rate[i] + LONGEST_PUSH_US)
      tat[i] = math.max(tat[i], now + push)
    end
  end
end

local function restart(at)
  slope = restarted(slope, now, at, tonumber(arg.slope_start), tonumber(arg.slope_doubling_us))
end

local function pause(pause_us)
  if now + pause_us <= pause_at then return end
  pause_at = now + pause_us
  put_us('nb', pause_at)
  if pause_us > RESTART_PAUSE_US then restart(pause_at) end
end

-- A refusal says that the provider's bucket is empty. The quota's bucket is emptied, too: no process bursts right after the pause.
local function empty_buckets(at)
  local work = now + work_between(slope, now, at)
  for i = 1, n do tat[i] = math.max(tat[i], work + burst[i] / rate[i]) end
end

local function count(name, times)
  if times > 0 then redis.call('HINCRBY', key, 'x:' .. name, times) end
end

local function count_refusals()
  count('throttled', report.throttled + report.strays)
  count('ramp', report.ramp)
  count('failed', report.losses)
  -- the margin in force counts from now on: what is in the buckets stays, in time
  if report.throttled > 0 and pause_at <= now and now - tonumber(state[7]) >= EPISODE_US then
    put('mg', string.format('%.4f', margin_cut(margin)))
    put_us('mga', now)
  end
  if report.ramp > 0 then slope = flattened(slope, now, math.max(now, pause_at)) end
  if report.hold ~= '' then
    count('held', 1)
    if hold == '' then
      hold = report.hold
      put('hold', hold)
      put_us('hat', now)
    end
  end
end

local function count_wins()
  if report.wins > 0 then
    proven_at = now
    put_us('ok', now)
  end
  local left = math.max(0, math.min(FULL_BUDGET, budget - report.retries + WIN_EARNS * report.wins))
  if left ~= budget then
    budget = left
    put('rb', string.format('%.1f', budget))
  end
end

local function turn_breaker()
  if breaker.state == CLOSED and not report then return end
  local before = breaker_values(breaker)
  if move_breaker(breaker, key, report, now) then restart(math.max(now, pause_at)) end
  for i, value in ipairs(breaker_values(breaker)) do
    if value ~= before[i] then put_us(BREAKER_FIELDS[i], value) end
  end
end

-- --- hand out ------------------------------------------------------------------------------------------------------

-- how many may be granted at all, and when to ask again if none
local function most_to_grant()
  if hold ~= '' then return 0, HOLD_RECHECK_US end
  if breaker.state == OPEN then return 0, breaker.turns_at - now end
  if breaker.state == HALF_OPEN then return breaker.probes, PROBE_RECHECK_US end
  return items, 0
end

-- After a restart the burst is as small a part of itself as the rate.
local function shrink_bursts(earliest)
  local missing = 1 - share_at(slope, earliest)
  if missing <= 0 then return end
  local work = now + work_between(slope, now, earliest)
  for i = 1, n do tat[i] = math.max(tat[i], work + missing * burst[i] / rate[i]) end
end

local waits = {}

-- Start times in work since now, in the order of the items; returns how many, and when to ask for the first one left out.
local function grant(most)
  local earliest = math.max(now, pause_at)
  local idle_us = tonumber(arg.slope_after_idle_us)
  if idle_us > 0 and (not last_start or earliest - last_start > idle_us) then restart(earliest) end
  shrink_bursts(earliest)
  local first_start, before, granted = now + work_between(slope, now, earliest), {unpack(tat)}, 0
  for item = 0, most - 1 do
    local at = first_cost + item * n - 1
    local start = first_start
    for i = 1, n do
      start = math.max(start, tat[i] + (math.min(tonumber(ARGV[at + i]), burst[i]) - burst[i]) / rate[i])
    end
    local wait = time_after(slope, now, start - now) - now
    if wait > max_ahead then return granted, math.ceil(wait - max_ahead) end
    local advance = 0
    for i = 1, n do
      local cost = tonumber(ARGV[at + i])
      local takes = cost / rate[i]
      tat[i] = math.max(tat[i], start) + takes
      mean[i] = (mean[i] or takes) + LEARNING_RATE * (takes - (mean[i] or takes))
      charged[i] = charged[i] + cost
      advance = math.max(advance, tat[i] - before[i])
    end
    granted = granted + 1
    waits[granted] = math.ceil(wait)
    if fair_share > 0 and advance > fair_share then break end
  end
  return granted, 0
end

-- --- one step ------------------------------------------------------------------------------------------------------

settle()
apply_remaining()
local counters = {}
for i = 1, n do counters[i] = string.format('%.3f', charged[i]) end
if report then
  count_refusals()
  count_wins()
end
pause(tonumber(arg.pause_us))
if report and report.throttled > 0 then empty_buckets(math.max(now, pause_at)) end
turn_breaker()

local granted, retry_us = 0, 0
local most, recheck_us = most_to_grant()
if most > 0 and items > 0 then
  granted, retry_us = grant(math.min(items, most))
  if breaker.state == HALF_OPEN then
    breaker.probes = breaker.probes - granted
    put_us('bp', breaker.probes)
    if retry_us == 0 and granted < items then retry_us = recheck_us end
  end
elseif most == 0 then
  retry_us = recheck_us
end

-- --- write ---------------------------------------------------------------------------------------------------------

local given = granted + tonumber(arg.started)
if given > 0 then put_us('n', granted_ever + given) end
if granted > 0 then put_us('ng', now + waits[granted]) end
if slope and whole_at(slope) <= now then slope = nil end
if slope then
  put('rf', string.format('%.6f', slope.share))
  put_us('ra', slope.at)
  put_us('rd', slope.doubling)
elseif state[8] then
  redis.call('HDEL', key, 'rf', 'ra', 'rd')
end
local share, pace_us = share_at(slope, now), 0
for i = 1, n do
  local row = shared_fields + ROW * (i - 1)
  put_us(fields[row + 3], tat[i])
  put(fields[row + 5], granted > 0 and string.format('%.3f', charged[i]) or counters[i])
  if mean[i] then
    if granted > 0 then put(fields[row + 4], string.format('%.3f', mean[i])) end
    pace_us = math.max(pace_us, math.ceil(mean[i] / share), 1)
  end
end
redis.call('HSET', key, unpack(writes))

local left_us = breaker.state == OPEN and breaker.turns_at - now or 0
local proven = proven_at and now - proven_at <= PROVEN_US and 1 or 0
local values = {granted = granted, retry_us = retry_us, pause_left_us = math.max(0, math.ceil(pause_at - now)),
  pause_at_us = pause_at, pace_us = pace_us, processes = redis.call('ZCARD', KEYS[2]), breaker = breaker.state,
  generation = breaker.generation, breaker_left_us = left_us, hold = hold, proven = proven,
  retry_budget = string.format('%.1f', budget), share = string.format('%.4f', share * usable)}
local reply = {}
for place, name in ipairs(REPLY) do reply[place] = values[name] end
for i = 1, n do reply[#reply + 1] = counters[i] end
for i = 1, granted do reply[#reply + 1] = waits[i] end
return reply
