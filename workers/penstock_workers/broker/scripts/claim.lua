-- Takes messages from the fronts of queues, in the order of the queues, and records each as unacked under one lease time.
-- KEYS: unacked, unacked_index, penstock:parked:unknown, then the lists to take from
-- ARGV: how many at most, then for each list the queue's name in JSON, or '' when its messages need no acknowledgement
-- A message of more than LARGEST bytes is parked here: to read it would take a worker's memory, and the next one's.
-- Returns {lease time, duplicates dropped, later tries put off, list number, tag, message, list number, tag, message, ...}

local unacked, index, parked = KEYS[1], KEYS[2], KEYS[3]
local LARGEST = 32 * 1024 * 1024 -- above the arguments of a door task, in base64, with every character escaped
local room, started = tonumber(ARGV[1]), now()
local reply, leases, dropped, put_off = {started, 0, 0}, {}, 0, {}

-- The tag is held already. A later try of the same item can only exist once the earlier one is settled, so its holder is
-- about to acknowledge it: the later one waits at the far end of its queue. Anything else is a hint we have: drop it.
local function meet_holder(list, raw, held)
  if retries_of(raw) > retries_of(held) then
    put_off[#put_off + 1] = {list, raw}
  else
    dropped = dropped + 1
  end
end

local function hand_out(number, tag, raw)
  local last = #reply
  reply[last + 1], reply[last + 2], reply[last + 3] = number, tag, raw
end

-- The messages of one list and their tags, without those that cannot be read.
local function readable(raws)
  local kept, tags = {}, {}
  for _, raw in ipairs(raws) do
    local tag = #raw <= LARGEST and tag_of(raw) or nil
    if tag then
      kept[#kept + 1], tags[#tags + 1] = raw, tag
    else
      redis.call('RPUSH', parked, raw)
    end
  end
  return kept, tags
end

-- A call of Redis from Lua costs as much as what it does: hence one HMGET and one HSET for all messages of a list.
local function record(number, raws, tags, queue)
  local held, taken, records = redis.call('HMGET', unacked, unpack(tags)), {}, {}
  for at, raw in ipairs(raws) do
    local tag = tags[at]
    if held[at] or taken[tag] then
      meet_holder(KEYS[number + 3], raw, taken[tag] or open_record(held[at]))
    else
      taken[tag] = raw
      records[#records + 1], records[#records + 2] = tag, '[' .. raw .. ',"",' .. queue .. ']'
      leases[#leases + 1], leases[#leases + 2] = started, tag
      hand_out(number, tag, raw)
    end
  end
  if #records > 0 then redis.call('HSET', unacked, unpack(records)) end
end

for number = 1, #KEYS - 3 do
  if room <= 0 then break end
  local found = redis.call('RPOP', KEYS[number + 3], room) or {}
  room = room - #found
  local queue, raws, tags = ARGV[number + 1], readable(found)
  if queue == '' then
    for at, raw in ipairs(raws) do hand_out(number, tags[at], raw) end
  elseif #raws > 0 then
    record(number, raws, tags, queue)
  end
end
if #leases > 0 then redis.call('ZADD', index, unpack(leases)) end
for _, later in ipairs(put_off) do redis.call('LPUSH', later[1], later[2]) end
reply[2], reply[3] = dropped, #put_off
return reply
