-- Keep the time at which a header last stated each limit, so that the fleet can forget limits that no header states. Prelude: clock.
--
-- KEYS[1]  the quota hash described in reserve.lua; field here: h:<dim>  when a header last stated its limit, us
-- ARGV  1 now_us or ''   2 n dimensions that were stated just now, then their names; then names of dimensions to look at
-- returns per dimension to look at: us since a header last stated it to any process (0 for one never stated: counted from now)

local key, now, stated = KEYS[1], clock_us(ARGV[1]), tonumber(ARGV[2])
if redis.call('EXISTS', key) == 0 then stated = nil end -- forgotten: nothing is written to what is not installed
for i = 3, 2 + (stated or 0) do redis.call('HSET', key, 'h:' .. ARGV[i], string.format('%.0f', now)) end
local ages = {}
for i = 3 + tonumber(ARGV[2]), #ARGV do
  local at = tonumber(redis.call('HGET', key, 'h:' .. ARGV[i]) or now)
  if stated then redis.call('HSETNX', key, 'h:' .. ARGV[i], string.format('%.0f', now)) end
  ages[#ages + 1] = math.max(0, now - at)
end
return ages
