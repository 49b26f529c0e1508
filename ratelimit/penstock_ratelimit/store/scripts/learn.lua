-- Add what one process learned about costs to what the fleet knows, and return the sum.
--
-- KEYS[1]  <prefix>{q:<id>}:l  hash, expires when nothing is learned any more: key (job and model, say) -> sketch, as JSON:
--          [time of the last change in s, ratio, weight, bin, count, bin, count, ...]   (estimates.py: Sketch)
-- ARGV  1 now_us or ''   2 expires after, s   3 most fields   4 memory in observations   5 a bin's count that is forgotten
--       then per key: field, sketch ('' = only return it); the time in it is ignored
-- returns per key: its sketch, '' when it is unknown
-- Counts are weighted: two processes that add to the same key both count, and what is old fades as far as old and new
-- together exceed the memory. A value that cannot be read counts as unknown.

local now_s = clock_us(ARGV[1]) / 1000000
local max_fields, memory, faded = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local function read(text)
  local ok, numbers = pcall(cjson.decode, text)
  if not ok or type(numbers) ~= 'table' or #numbers < 3 or #numbers % 2 == 0 then return nil end
  for i = 1, #numbers do
    local number = numbers[i]
    if type(number) ~= 'number' or number ~= number or number < 0 or number == math.huge then return nil end
  end
  local sketch = {ratio = numbers[2], weight = numbers[3], bins = {}, outputs = 0}
  for i = 4, #numbers, 2 do
    sketch.bins[numbers[i]] = numbers[i + 1]
    sketch.outputs = sketch.outputs + numbers[i + 1]
  end
  return sketch
end

local function rounded(number)
  return math.floor(number * 10000 + 0.5) / 10000
end

local function written(sketch)
  local numbers = {math.floor(now_s), rounded(sketch.ratio), rounded(sketch.weight)}
  for bin, count in pairs(sketch.bins) do
    numbers[#numbers + 1] = bin
    numbers[#numbers + 1] = rounded(count)
  end
  return cjson.encode(numbers)
end

local function kept(old, new)
  if old <= 0 or old + new <= memory then return 1 end
  return math.max(0, memory - new) / old
end

local function merge(old, new)
  local part = kept(old.weight, new.weight)
  local weight = part * old.weight + new.weight
  local ratio = old.ratio
  if weight > 0 then ratio = ratio + (new.ratio - ratio) * new.weight / weight end
  local bins = {}
  part = kept(old.outputs, new.outputs)
  for bin, count in pairs(old.bins) do
    if part * count > faded then bins[bin] = part * count end
  end
  for bin, count in pairs(new.bins) do bins[bin] = (bins[bin] or 0) + count end
  return {ratio = ratio, weight = weight, bins = bins}
end

-- Not the oldest of all, which would mean reading all: of a few, like Redis itself evicts.
local function make_room()
  local some = redis.call('HRANDFIELD', KEYS[1], 8, 'WITHVALUES')
  local oldest, oldest_at
  for i = 1, #some, 2 do
    local at = tonumber(string.match(some[i + 1], '%d+')) or 0
    if not oldest or at < oldest_at then oldest, oldest_at = some[i], at end
  end
  redis.call('HDEL', KEYS[1], oldest)
end

local sums, learned = {}, false
for i = 6, #ARGV, 2 do
  local field, new = ARGV[i], ARGV[i + 1] ~= '' and read(ARGV[i + 1])
  local stored = redis.call('HGET', KEYS[1], field)
  local old = stored and read(stored)
  if new then
    if not stored and redis.call('HLEN', KEYS[1]) >= max_fields then make_room() end
    stored = written(old and merge(old, new) or new)
    redis.call('HSET', KEYS[1], field, stored)
    learned = true
  end
  sums[#sums + 1] = (new or old) and stored or ''
end
if learned then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return sums
