-- Remember why calls of a provider fail lately: added up over processes, by job and class, and forgotten by itself.
--
-- KEYS[1] penstock:failing:<provider>  hash "<job>|<class>" -> JSON [count, since, last, text], times in Unix seconds;
--                                      expires as a whole when nothing fails any more
-- ARGV[1] seconds after which it expires
-- ARGV[2] seconds without such a failure after which the count starts anew
-- ARGV[3] most fields; the oldest give way
-- then per entry: field, count, since, last, text
-- Returns the number of fields

local gap, most = tonumber(ARGV[2]), tonumber(ARGV[3])

-- {count, since, last} of a stored entry; nil where there is none, or one of another release
local function read(stored)
  local ok, entry = pcall(cjson.decode, stored or '')
  if not ok or type(entry) ~= 'table' then return nil end
  for i = 1, 3 do
    if type(entry[i]) ~= 'number' then return nil end
  end
  return entry
end

for i = 4, #ARGV, 5 do
  local count, since, last, text = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), ARGV[i + 4]
  local before = read(redis.call('HGET', KEYS[1], ARGV[i]))
  if before and since - before[3] <= gap then
    count, since, last = count + before[1], math.min(since, before[2]), math.max(last, before[3])
  end
  redis.call('HSET', KEYS[1], ARGV[i], cjson.encode({count, since, last, text}))
end
redis.call('EXPIRE', KEYS[1], ARGV[1])

local length = redis.call('HLEN', KEYS[1])
if length > most then
  local all, ages = redis.call('HGETALL', KEYS[1]), {}
  for i = 1, #all, 2 do
    local entry = read(all[i + 1])
    ages[#ages + 1] = {entry and entry[3] or 0, all[i]}
  end
  table.sort(ages, function(one, other) return one[1] < other[1] end)
  for i = 1, length - most do redis.call('HDEL', KEYS[1], ages[i][2]) end
  length = most
end
return length
