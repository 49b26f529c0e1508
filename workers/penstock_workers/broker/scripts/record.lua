-- Functions that the other scripts begin with. Every script of this folder is one atomic step.
--
-- Keys are kombu's own, so stock workers can share the queues:
--   <queue>         list: producers LPUSH, workers RPOP, so its right end is the front
--   unacked         hash: delivery tag -> record, the text [message,"exchange","routing key"]
--   unacked_index   zset: delivery tag -> when its lease was last renewed, unix seconds on this server's clock
-- and one of Penstock's:
--   penstock:parked:unknown   list: messages that no worker can take or route. Kept for a person, never dropped.
--
-- Message texts are cut and joined, never decoded and encoded again: cjson would turn [] into {} and round large integers.

local function now()
  local clock = redis.call('TIME')
  return string.format('%s.%06d', clock[1], tonumber(clock[2]))
end

-- A lease is the caller's when its score is the one the caller saw last, or a renewal of the caller's whose answer got
-- lost. No other worker's can be that near: to be claimed again it must first have gone `timeout` seconds without renewal. Only where
-- Redis has forgotten it can be: of what was seen before the latest rebuild nothing but the same score is the caller's.
local SAME_S = 5e-7 -- half a microsecond, in which scores are

local function is_near(score, seen, timeout, rebuilt)
  if not score then return false end
  local room = tonumber(seen) < (rebuilt or 0) and SAME_S or tonumber(timeout)
  return math.abs(tonumber(score) - tonumber(seen)) < room
end

local function is_held(index, tag, seen, timeout, rebuilt)
  return is_near(redis.call('ZSCORE', index, tag), seen, timeout, rebuilt)
end

-- When Redis was rebuilt last, by what is left of the `kept` seconds of the key that says so; 0 where that is longer ago. A millisecond
-- more, as what is left is in whole ones.
local function rebuilt_at(key, kept)
  local left = redis.call('PTTL', key)
  return left > 0 and tonumber(now()) + (left + 1) / 1000 - tonumber(kept) or 0
end

local function drop(unacked, index, tag)
  redis.call('ZREM', index, tag)
  redis.call('HDEL', unacked, tag)
end

-- A record's message text, exchange and routing key; nothing when it is not a record.
local function open_record(record)
  local raw, names = string.match(record, '^%[(.*),%s*("[^"]*",%s*"[^"]*")%]$')
  local read, pair = pcall(cjson.decode, '[' .. (names or '') .. ']')
  if raw == nil or not read then return nil end
  return raw, pair[1], pair[2]
end

-- Where kombu keeps what is bound to an exchange: members are routing key, pattern and queue, joined by \6\22.
local function queues_of(exchange, routing_key, prefix)
  if exchange == '' then return {routing_key} end
  local queues = {}
  for _, member in ipairs(redis.call('SMEMBERS', prefix .. '_kombu.binding.' .. exchange)) do
    local key, queue = string.match(member, '^(.-)\6\22.-\6\22(.*)$')
    if key == routing_key then queues[#queues + 1] = queue end
  end
  return queues
end

-- kombu spreads priorities over several lists per queue; steps is '0' where they are unused, else like '0,3,6,9'.
local function suffix_of(raw, steps)
  if steps == '0' then return '' end
  local read, message = pcall(cjson.decode, raw)
  local properties = read and type(message) == 'table' and message.properties
  local priority, best = type(properties) == 'table' and tonumber(properties.priority) or 0, 0
  for step in string.gmatch(steps, '%d+') do
    if tonumber(step) <= priority then best = tonumber(step) end
  end
  return best == 0 and '' or '\6\22' .. best
end

-- Sets properties.delivery_info.redelivered where kombu sets it. The quotes around delivery_info are a key's: inside a
-- JSON string they would be preceded by a backslash.
local function mark_redelivered(raw)
  local _, brace = string.find(raw, '"delivery_info":%s*{')
  if brace == nil then return raw end
  local rest = string.sub(raw, brace + 1)
  if string.find(rest, '^"redelivered":true') then return raw end
  local comma = string.find(rest, '^%s*}') and '' or ','
  return string.sub(raw, 1, brace) .. '"redelivered":true' .. comma .. rest
end

-- Puts a record's message to the front of the queue it came from.
local function put_back(record, parked, prefix, steps)
  local raw, exchange, routing_key = open_record(record)
  local queues = raw and queues_of(exchange, routing_key, prefix) or {}
  for _, queue in ipairs(queues) do
    redis.call('RPUSH', prefix .. queue .. suffix_of(raw, steps), mark_redelivered(raw))
  end
  if #queues == 0 then redis.call('RPUSH', parked, raw or record) end
end

-- The end of a message as the producer writes it. Read this way it need not be parsed, body and all, to find one id. The quotes around
-- "properties" are a key's (inside a JSON string they would follow a backslash), and the two braces close it and the message.
-- The plain search comes first because Lua's patterns are slow to find where they begin.
local BEGINS = '"properties":{"correlation_id":"'
local ENDING = '^"properties":{"correlation_id":"[^"\\]*","delivery_mode":2,"delivery_info":{"exchange":"",'
  .. '"routing_key":"[^"\\]*"},"priority":0,"delivery_tag":"([^"\\]+)"}}$'
local ENDING_MAX = 1024 -- bytes; what has longer ids is parsed

local function tag_of(raw)
  local from = string.find(raw, BEGINS, -ENDING_MAX, true)
  local tag = from and string.match(raw, ENDING, from)
  if tag then return tag end
  local read, message = pcall(cjson.decode, raw)
  if not read or type(message) ~= 'table' or type(message.properties) ~= 'table' then return nil end
  tag = message.properties.delivery_tag
  return type(tag) == 'string' and tag or nil
end

local function retries_of(raw)
  local read, message = pcall(cjson.decode, raw or '')
  local headers = read and type(message) == 'table' and message.headers
  return type(headers) == 'table' and tonumber(headers.retries) or 0
end
