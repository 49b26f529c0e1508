-- Conclude items whose outcomes are in SQL already, send others into the delayed set, and give starts back.
-- Settling twice changes nothing: an item counts when it enters the completed set, a retry when it enters the delayed set.
--
-- KEYS[1] penstock:epoch  only touched, see below
-- computed, from the prefixes in ARGV:
--   penstock:<job>:stats            hash of counters
--   penstock:<job>:<gen>:done:<n>   hash, completed set: "" done, "!" dead
--   penstock:<job>:<gen>:window     hash: finished items leave it; retried ones stay
--   penstock:<job>:<gen>:starts     hash: finished items leave it; retried and released ones give one start back
--   penstock:delayed:<queue>        zset tag -> not before (seconds, this server's clock)
--   penstock:delayed:<queue>:raw    hash tag -> raw message
-- ARGV[1] msgpack list of the feeds of finished items, each {job prefix, feed prefix, {document id, ...}, {item, ...}} with
--   item: {bucket number, completed-set field as in begin.lua, after retry (0|1) or the reason of a dead letter,
--   prompt tokens, completion tokens, microdollars, calls}
-- ARGV[2..3] numbers of retried and released items (with the finished ones at most 500), then
--   retried:  job prefix, feed prefix, bucket, field, document id, delayed key, tag, raw, seconds from now,
--             rate limited (0|1), prompt tokens, completion tokens, microdollars, calls
--   released: feed prefix, document id
-- then the fields of finished items that need an argument
-- Returns {new in the completed set, new in the delayed set}

-- A script whose first write needs no memory may go on in a full Redis, and settling is what frees memory.
redis.call('PERSIST', KEYS[1])

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local sums = {}

local function count(job, name, amount)
  if amount == 0 then return end
  local stats = sums[job]
  if not stats then
    stats = {}
    sums[job] = stats
  end
  stats[name] = (stats[name] or 0) + amount
end

local function give_back(feed, doc)
  local starts = feed .. ':starts'
  local open = tonumber(redis.call('HGET', starts, doc) or '0')
  if open > 1 then
    redis.call('HINCRBY', starts, doc, -1)
  elseif open == 1 then
    redis.call('HDEL', starts, doc)
  end
end

local function count_spent(job, prompt_tokens, completion_tokens, cost_microusd, calls)
  count(job, 'prompt_tokens', prompt_tokens)
  count(job, 'completion_tokens', completion_tokens)
  count(job, 'cost_microusd', cost_microusd)
  count(job, 'calls', calls)
end

local BUCKET, FIELD, WHY = 1, 2, 3 -- WHY: text in a dead letter
local new, delayed, i = 0, 0, 4
for _, feed in ipairs(cmsgpack.unpack(ARGV[1])) do
  local job, scope, docs, items = unpack(feed)
  redis.call('HDEL', scope .. ':window', unpack(docs))
  redis.call('HDEL', scope .. ':starts', unpack(docs))
  for at, item in ipairs(items) do
    local why = item[WHY]
    local is_dead = type(why) == 'string'
    local field = item[FIELD] and ARGV[item[FIELD]] or docs[at]
    if redis.call('HSETNX', scope .. ':done:' .. item[BUCKET], field, is_dead and '!' or '') == 1 then
      new = new + 1
      if is_dead then
        count(job, 'dead', 1)
        count(job, 'dead:' .. why, 1)
      else
        count(job, 'succeeded', 1)
        count(job, 'succeeded_after_retry', why)
      end
      count_spent(job, unpack(item, WHY + 1))
    end
  end
end

for _ = 1, tonumber(ARGV[2]) do
  local job, feed, doc, queue, tag = ARGV[i], ARGV[i + 1], ARGV[i + 4], ARGV[i + 5], ARGV[i + 6]
  local finished = redis.call('HEXISTS', feed .. ':done:' .. ARGV[i + 2], ARGV[i + 3]) == 1
  if not finished and redis.call('ZADD', queue, 'NX', now + tonumber(ARGV[i + 8]), tag) == 1 then
    delayed = delayed + 1
    redis.call('HSET', queue .. ':raw', tag, ARGV[i + 7])
    count(job, 'retries', 1)
    count(job, 'rate_limited', tonumber(ARGV[i + 9]))
    count_spent(job, tonumber(ARGV[i + 10]), tonumber(ARGV[i + 11]), tonumber(ARGV[i + 12]), tonumber(ARGV[i + 13]))
    give_back(feed, doc)
  end
  i = i + 14
end

for _ = 1, tonumber(ARGV[3]) do
  give_back(ARGV[i], ARGV[i + 1])
  i = i + 2
end

for job, stats in pairs(sums) do
  for name, amount in pairs(stats) do
    redis.call('HINCRBY', job .. ':stats', name, string.format('%.0f', amount))
  end
end
return {new, delayed}
