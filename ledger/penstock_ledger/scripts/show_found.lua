-- Show a number to an autoscaler that can read nothing but the lengths of keys.
--
-- KEYS[1] penstock:found:<home queue>:waiting  list of as many entries as the number; its entries say nothing
-- ARGV[1] the number, ARGV[2] seconds after which it is too old to be believed
-- Returns the length

local wanted = tonumber(ARGV[1])
if redis.call('TYPE', KEYS[1]).ok ~= 'list' then
  redis.call('DEL', KEYS[1])
end
local length = redis.call('LLEN', KEYS[1])
if wanted == 0 then
  redis.call('DEL', KEYS[1])
elseif wanted < length then
  redis.call('LTRIM', KEYS[1], 0, wanted - 1)
end
while length < wanted do
  local some = {}
  for i = 1, math.min(1000, wanted - length) do
    some[i] = '1'
  end
  length = redis.call('RPUSH', KEYS[1], unpack(some))
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return wanted
