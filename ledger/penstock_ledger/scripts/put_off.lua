-- Send items into the delayed set, and give starts back. A retry counts when it enters the delayed set: a second time changes nothing.
--
-- KEYS[1] penstock:epoch  only touched, see below
-- computed, from the prefixes in ARGV:
--   penstock:<job>:stats            hash of counters; sums.lua. :lately and :earlier of feeds: lately.lua
--   penstock:<job>:state            string: of a job that was purged nothing is written; purged.lua
--   penstock:<job>:<gen>:done:<n>   hash, completed set: what is in it gets no other attempt
--   penstock:<job>:<gen>:starts     hash: retried and released items give one start back
--   the hashes of account.lua, in jobs with a budget
--   penstock:delayed:<queue>        zset tag -> not before (seconds, this server's clock)
--   penstock:delayed:<queue>:raw    hash tag -> raw message
-- ARGV[1..2] numbers of retried and released items (at most 500 together), then
--   retried:  job prefix, feed prefix, bucket, field, document id, delayed key, tag, raw, seconds from now,
--             rate limited (0|1), reason ("" where nothing was tried), prompt tokens, completion tokens, microdollars, calls,
--             has a budget (0|1), its first answer, which was refused (0|1)
--   released: feed prefix, document id, and in a job with a budget its prefix and the microdollars that were paid, else "" and 0
-- Returns how many are new in the delayed set, then what lately.lua shows

-- A script whose first write needs no memory may go on in a full Redis: work must drain for memory to be freed.
redis.call('PERSIST', KEYS[1])

local RETRIED, RELEASED = 17, 4 -- arguments of each
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000

local function give_back(feed, doc)
  local starts = feed .. ':starts'
  local open = tonumber(redis.call('HGET', starts, doc) or '0')
  if open > 1 then
    redis.call('HINCRBY', starts, doc, -1)
  elseif open == 1 then
    redis.call('HDEL', starts, doc)
  end
end

local delayed, i = 0, 3
for _ = 1, tonumber(ARGV[1]) do
  local job, feed, bucket, field, doc, queue, tag, raw, after, limited, reason = unpack(ARGV, i, i + 10)
  local finished = redis.call('HEXISTS', feed .. ':done:' .. bucket, field) == 1
  if not finished and not is_purged(job) and redis.call('ZADD', queue, 'NX', now + tonumber(after), tag) == 1 then
    delayed = delayed + 1
    redis.call('HSET', queue .. ':raw', tag, raw)
    count(job, 'rate_limited', tonumber(limited))
    if reason ~= '' then count(job, 'retried:' .. reason, 1) end
    count_spent(job, tonumber(ARGV[i + 11]), tonumber(ARGV[i + 12]), tonumber(ARGV[i + 13]), tonumber(ARGV[i + 14]))
    note_lately(feed, 'cost_microusd', tonumber(ARGV[i + 13]))
    if ARGV[i + 16] == '1' then note_first_answer(feed, reason) end
    give_back(feed, doc)
    if ARGV[i + 15] == '1' then conclude(job, reservation(job, feed, doc), tonumber(ARGV[i + 13])) end
  end
  i = i + RETRIED
end
for _ = 1, tonumber(ARGV[2]) do
  local feed, doc, job, paid = unpack(ARGV, i, i + 3)
  give_back(feed, doc)
  if job ~= '' and not is_purged(job) then keep_paid(job, reservation(job, feed, doc), tonumber(paid)) end
  i = i + RELEASED
end
write_sums()
return close_accounts({delayed, unpack(write_lately())})
