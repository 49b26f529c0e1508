-- Conclude items whose outcomes are in SQL already. An item counts when it enters the completed set: settling twice changes nothing.
--
-- KEYS[1] penstock:epoch  only touched, see below; computed, from the prefixes in ARGV:
--   penstock:<job>:stats            hash of counters; sums.lua. :lately and :earlier of feeds: lately.lua
--   penstock:<job>:state            string: of a job that was purged nothing is written; purged.lua
--   penstock:<job>:<gen>:done:<n>   hash, completed set: "" done, "!" dead
--   penstock:<job>:<gen>:window     hash: finished items leave it, and
--   penstock:<job>:<gen>:starts     hash: likewise; the hashes of keep.lua, and of account.lua in jobs with a budget
-- ARGV[1] msgpack list of feeds, each {job prefix, feed prefix, {document id, ...}, {item, ...}, true with a budget}, 500 items at most, with
--   item: {bucket number, completed-set field as in begin.lua, after retry (0|1) or the reason of a dead letter,
--   prompt tokens, completion tokens, microdollars, calls}; of a result also what keep.lua takes, and why no call was made, or nil;
--   of a dead letter also true where it is the first answer to its document, which was refused
-- then the fields that need an argument. Returns how many are new in the completed set, then what lately.lua shows

-- A script whose first write needs no memory may go on in a full Redis, and settling is what frees memory.
redis.call('PERSIST', KEYS[1])

local BUCKET, FIELD, WHY, COST, KEEP, REUSED, REFUSED = 1, 2, 3, 6, 8, 9, 8 -- WHY: text in a dead letter
local new = 0
for _, feed in ipairs(cmsgpack.unpack(ARGV[1])) do
  local job, scope, docs, items, has_budget = unpack(feed)
  redis.call('HDEL', scope .. ':window', unpack(docs))
  redis.call('HDEL', scope .. ':starts', unpack(docs))
  for at, item in ipairs(is_purged(job) and {} or items) do
    local why = item[WHY]
    local is_dead = type(why) == 'string'
    local field = item[FIELD] and ARGV[item[FIELD]] or docs[at]
    if redis.call('HSETNX', scope .. ':done:' .. item[BUCKET], field, is_dead and '!' or '') == 1 then
      new = new + 1
      if is_dead then
        count(job, 'dead', 1)
        count(job, 'dead:' .. why, 1)
        note_lately(scope, 'dead', 1)
        if item[REFUSED] then note_first_answer(scope, why) else note_lately(scope, 'why:' .. why, 1) end
      else
        count(job, 'succeeded', 1)
        count(job, 'succeeded_after_retry', why)
        if item[REUSED] then
          count(job, 'reused:' .. item[REUSED], 1)
        elseif why == 0 then
          note_first_answer(scope)
        end
      end
      note_lately(scope, 'ended', 1)
      note_lately(scope, 'cost_microusd', item[COST])
      count_spent(job, unpack(item, WHY + 1, KEEP - 1))
    end
    if has_budget then conclude(job, reservation(job, scope, docs[at]), item[COST]) end
    if not is_dead and item[KEEP] then keep_answer(item[KEEP], scope, docs[at]) end -- keep.lua
  end
end
write_sums()
write_kept()
return close_accounts({new, unpack(write_lately())})
