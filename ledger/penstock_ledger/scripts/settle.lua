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
-- ARGV[1..4] numbers of finished, retried, released and crashed items (at most 500 together), then
--   finished: job prefix, feed prefix, bucket, field, document id, "" or "!", after retry (1) or reason,
--             prompt tokens, completion tokens, microdollars, calls
--   retried:  job prefix, feed prefix, bucket, field, document id, delayed key, tag, raw, seconds from now,
--             rate limited (0|1), reason, prompt tokens, completion tokens, microdollars, calls
--   released: feed prefix, document id
--   crashed:  job prefix, reason  given back as their engine died; their starts stay counted
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

local function count_spent(job, first)
  count(job, 'prompt_tokens', tonumber(ARGV[first]))
  count(job, 'completion_tokens', tonumber(ARGV[first + 1]))
  count(job, 'cost_microusd', tonumber(ARGV[first + 2]))
  count(job, 'calls', tonumber(ARGV[first + 3]))
end

local new, delayed, i = 0, 0, 5
for _ = 1, tonumber(ARGV[1]) do
  local job, feed, doc, mark = ARGV[i], ARGV[i + 1], ARGV[i + 4], ARGV[i + 5]
  redis.call('HDEL', feed .. ':window', doc)
  redis.call('HDEL', feed .. ':starts', doc)
  if redis.call('HSETNX', feed .. ':done:' .. ARGV[i + 2], ARGV[i + 3], mark) == 1 then
    new = new + 1
    if mark == '' then
      count(job, 'succeeded', 1)
      count(job, 'succeeded_after_retry', tonumber(ARGV[i + 6]))
    else
      count(job, 'dead', 1)
      count(job, 'dead:' .. ARGV[i + 6], 1)
    end
    count_spent(job, i + 7)
  end
  i = i + 11
end

for _ = 1, tonumber(ARGV[2]) do
  local job, feed, doc, queue, tag = ARGV[i], ARGV[i + 1], ARGV[i + 4], ARGV[i + 5], ARGV[i + 6]
  local finished = redis.call('HEXISTS', feed .. ':done:' .. ARGV[i + 2], ARGV[i + 3]) == 1
  if not finished and redis.call('ZADD', queue, 'NX', now + tonumber(ARGV[i + 8]), tag) == 1 then
    delayed = delayed + 1
    redis.call('HSET', queue .. ':raw', tag, ARGV[i + 7])
    count(job, 'retries', 1)
    count(job, 'rate_limited', tonumber(ARGV[i + 9]))
    count(job, 'retried:' .. ARGV[i + 10], 1)
    count_spent(job, i + 11)
    give_back(feed, doc)
  end
  i = i + 15
end

for _ = 1, tonumber(ARGV[3]) do
  give_back(ARGV[i], ARGV[i + 1])
  i = i + 2
end

for _ = 1, tonumber(ARGV[4]) do
  count(ARGV[i], 'retried:' .. ARGV[i + 1], 1)
  i = i + 2
end

for job, stats in pairs(sums) do
  for name, amount in pairs(stats) do
    redis.call('HINCRBY', job .. ':stats', name, string.format('%.0f', amount))
  end
end
return {new, delayed}
