-- Keep the time at which a header last told each limit, so that the fleet can forget what is told no more. Prelude: clock.
--
-- KEYS[1]  the quota hash described in reserve.lua; field here: h:<dim>  when a header last told its limit, us
-- ARGV  1 now_us or ''   2 n dimensions that were told just now, then their names; then names of dimensions to look at
-- returns per dimension to look at: us since any process was last told of it (0 for one that was never told: from now on)

local key, now, told = KEYS[1], clock_us(ARGV[1]), tonumber(ARGV[2])
if redis.call('EXISTS', key) == 0 then told = nil end -- forgotten: nothing is written to what is not installed
for i = 3, 2 + (told or 0) do redis.call('HSET', key, 'h:' .. ARGV[i], string.format('%.0f', now)) end
local ages = {}
for i = 3 + tonumber(ARGV[2]), #ARGV do
  local at = tonumber(redis.call('HGET', key, 'h:' .. ARGV[i]) or now)
  if told then redis.call('HSETNX', key, 'h:' .. ARGV[i], string.format('%.0f', now)) end
  ages[#ages + 1] = math.max(0, now - at)
end
return ages
