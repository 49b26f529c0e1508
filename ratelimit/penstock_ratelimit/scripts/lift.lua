-- End a hold and a pause: somebody says that the account is in order. It has to prove itself again, so few are sent at first.
--
-- KEYS[1]  the quota hash described in reserve.lua
-- returns 1 when it was held, else 0

local held = redis.call('HDEL', KEYS[1], 'hold', 'hat') > 0
redis.call('HDEL', KEYS[1], 'ok', 'nb')
return held and 1 or 0
