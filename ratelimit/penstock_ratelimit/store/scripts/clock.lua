-- Prelude of the other scripts (put before their text): one clock for all processes, Redis's own.
-- An injected time in microseconds is for tests only; production passes ''.

local function clock_us(injected)
  if injected ~= '' then return tonumber(injected) end
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- Redis's clock can step back (NTP, failover). Up to this much, time stands still until it has caught up, so that a clock
-- that wavers hands out nothing twice. Beyond it, everything moves back with the clock, so that no caller waits for it.
local MAX_STANDSTILL_US = 1000000

local TIMES = {'lt', 'nb', 'ng', 'mga', 'ra', 'bu', 'bat', 'hat', 'ok'}
local TIMES_OF_DIM = {'t:', 'sa:', 'h:'}

-- returns now, and how far stored times have to move back
local function guarded(now, last_seen)
  local back = last_seen - now
  if back <= 0 then return now, 0 end
  if back <= MAX_STANDSTILL_US then return last_seen, 0 end
  return now, back
end

local function move_back(key, dims, back)
  local names = {unpack(TIMES)}
  for _, dim in ipairs(dims) do
    for _, prefix in ipairs(TIMES_OF_DIM) do names[#names + 1] = prefix .. dim end
  end
  for i, value in ipairs(redis.call('HMGET', key, unpack(names))) do
    if value then redis.call('HSET', key, names[i], string.format('%.0f', tonumber(value) - back)) end
  end
end
