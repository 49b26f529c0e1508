-- Add what one process learned about costs to what everybody knows, and tell it the sum.
--
-- KEYS[1]  <prefix>{q:<id>}:l  hash, expires when nobody learns any more: key (job and model, say) -> sketch, as text:
--          "<time of the last change, s> <ratio> <weight> <bin> <count> <bin> <count> ..."   (estimate.py: Sketch)
-- ARGV  1 now_us or ''   2 expires after, s   3 most fields   4 memory in observations   5 a bin's count that is forgotten
--       then per key: field, sketch without the time ('' = only tell me)
-- returns per key: its sketch without the time, '' when nobody knows it
-- Counts are weighted: two processes that add to the same key both count, and what is old fades as far as old and new
-- together exceed the memory. A value that cannot be read counts as unknown.

local now_s = clock_us(ARGV[1]) / 1000000
local max_fields, memory, faded = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local function read(text)
  local numbers = {}
  for word in string.gmatch(text, '%S+') do
    local number = tonumber(word)
    if not number or number ~= number or number == math.huge or number == -math.huge then return nil end
    numbers[#numbers + 1] = number
  end
  if #numbers < 2 or #numbers % 2 ~= 0 then return nil end
  local sketch = {ratio = numbers[1], weight = numbers[2], bins = {}, outputs = 0}
  for i = 3, #numbers, 2 do
    sketch.bins[numbers[i]] = numbers[i + 1]
    sketch.outputs = sketch.outputs + numbers[i + 1]
  end
  return sketch
end

local function written(sketch)
  local words = {string.format('%.6g', sketch.ratio), string.format('%.6g', sketch.weight)}
  for bin, count in pairs(sketch.bins) do
    words[#words + 1] = string.format('%d', bin)
    words[#words + 1] = string.format('%.4g', count)
  end
  return table.concat(words, ' ')
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
    local at = tonumber(string.match(some[i + 1], '^%S+')) or 0
    if not oldest or at < oldest_at then oldest, oldest_at = some[i], at end
  end
  redis.call('HDEL', KEYS[1], oldest)
end

local sums, learned = {}, false
for i = 6, #ARGV, 2 do
  local field, new = ARGV[i], read(ARGV[i + 1])
  local stored = redis.call('HGET', KEYS[1], field)
  local old = stored and read(string.gsub(stored, '^%S+%s*', '', 1))
  local sum = new and (old and merge(old, new) or new) or old
  local text = sum and written(sum) or ''
  if new then
    if not stored and redis.call('HLEN', KEYS[1]) >= max_fields then make_room() end
    redis.call('HSET', KEYS[1], field, string.format('%.0f ', now_s) .. text)
    learned = true
  end
  sums[#sums + 1] = text
end
if learned then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return sums
