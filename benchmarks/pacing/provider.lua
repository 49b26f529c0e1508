-- A strict provider: takes a request whole or refuses it, and keeps the accounts that the benchmark reads.
--
-- KEYS[1]  terms     hash: window (0: refills all the time; else a budget per fixed window of so many seconds), depth (seconds
--                    of rate that it holds), opening (seconds of rate at the first request), charge_refused, rate:<dim>;
--                    written here: level:<dim>, at:<dim> (Unix seconds)
-- KEYS[2]  accounts  hash: accepted:<who> refused:<who> job:<job> charged:<dim>
-- KEYS[3]  bins      hash: <dim>:<tenth of a second> -> units accepted
-- ARGV  1 now_us or '' (this server's TIME)  2 who  3 job  4 '1' judge | '0' charge in any case (a negative cost is a refund)
--       5 n dimensions, then n times: dim, cost
-- returns {1|0, retry_us, then per dimension as text: capacity, level, seconds until it is full again}

local now
if ARGV[1] ~= '' then
  now = tonumber(ARGV[1]) / 1e6
else
  local t = redis.call('TIME')
  now = t[1] + t[2] / 1e6
end
local who, job, judge, n = ARGV[2], ARGV[3], ARGV[4] == '1', tonumber(ARGV[5])
local head = redis.call('HMGET', KEYS[1], 'window', 'depth', 'opening', 'charge_refused')
local window, depth, opening = tonumber(head[1]), tonumber(head[2]), tonumber(head[3])

local dims, cost, rate, capacity, level = {}, {}, {}, {}, {}
for i = 1, n do
  dims[i], cost[i] = ARGV[4 + 2 * i], tonumber(ARGV[5 + 2 * i])
  local row = redis.call('HMGET', KEYS[1], 'rate:' .. dims[i], 'level:' .. dims[i], 'at:' .. dims[i])
  local at = tonumber(row[3]) or now
  rate[i] = tonumber(row[1])
  capacity[i] = math.max(1, rate[i] * depth)
  level[i] = tonumber(row[2]) or math.min(capacity[i], rate[i] * opening)
  if window > 0 then
    if math.floor(now / window) > math.floor(at / window) then level[i] = capacity[i] end
  else
    level[i] = level[i] + (now - at) * rate[i]
  end
  level[i] = math.min(level[i], capacity[i])
end

local fits, retry_s = true, 0
for i = 1, n do
  if judge and level[i] < cost[i] - 1e-6 then
    fits = false
    local wait_s = (cost[i] - level[i]) / rate[i]
    if window > 0 then wait_s = window - now % window end
    retry_s = math.max(retry_s, wait_s)
  end
end

local reply = {fits and 1 or 0, math.ceil(retry_s * 1e6)}
for i = 1, n do
  local dim = dims[i]
  if fits then
    level[i] = math.min(level[i] - cost[i], capacity[i])
    redis.call('HINCRBYFLOAT', KEYS[2], 'charged:' .. dim, cost[i])
    if judge then redis.call('HINCRBYFLOAT', KEYS[3], string.format('%s:%d', dim, math.floor(now * 10)), cost[i]) end
  elseif head[4] == '1' and dim == 'requests' then
    level[i] = math.max(level[i] - cost[i], math.min(level[i], 0)) -- as far as one is left
  end
  redis.call('HSET', KEYS[1], 'level:' .. dim, string.format('%.6f', level[i]), 'at:' .. dim, string.format('%.6f', now))
  local full_s = (capacity[i] - level[i]) / rate[i]
  if window > 0 then full_s = window - now % window end
  reply[#reply + 1] = string.format('%.6f', capacity[i])
  reply[#reply + 1] = string.format('%.6f', level[i])
  reply[#reply + 1] = string.format('%.6f', full_s)
end
if judge then
  redis.call('HINCRBY', KEYS[2], (fits and 'accepted:' or 'refused:') .. who, 1)
  if fits then redis.call('HINCRBY', KEYS[2], 'job:' .. job, 1) end
end
return reply
