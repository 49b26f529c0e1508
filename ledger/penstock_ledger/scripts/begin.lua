-- Ask whether items may start and, where they may, count the start before anything is paid.
--
-- KEYS[1] penstock:epoch  touched, see below; while it is not the caller's, Redis forgot, and windows tell nothing
-- KEYS[2] penstock:epoch:rebuilt  exists for a while after a rebuild, when feeds have not filled the windows again
-- computed, from the prefixes in ARGV:
--   penstock:<job>:state            string: paused | cancelled | missing
--   penstock:<job>:stats            hash: skipped grows when a finished item was delivered again
--   penstock:<job>:<gen>:done:<n>   hash, completed set
--   penstock:<job>:<gen>:starts     hash document id -> starts without a conclusion so far; settle.lua takes them back
--   penstock:<job>:<gen>:window     hash: a finished item leaves it; only what is in it may start
-- ARGV[1] epoch, then per item (at most 500): job prefix, feed prefix, bucket number, completed-set field, document id
-- Returns per item: reply (0 go, 1 done, 2 paused, 3 cancelled, 4 or 5 in no window, see BeginReply),
-- crashes = earlier starts that never came to a conclusion

-- A script whose first write needs no memory may go on in a full Redis: work must drain for memory to be freed.
redis.call('PERSIST', KEYS[1])

local states, answer = {}, {}
local verdicts = {paused = 2, cancelled = 3}
local remembers = redis.call('GET', KEYS[1]) == ARGV[1]
local unknown = redis.call('EXISTS', KEYS[2]) == 1 and 5 or 4
for i = 2, #ARGV, 5 do
  local job, feed, field, doc = ARGV[i], ARGV[i + 1], ARGV[i + 3], ARGV[i + 4]
  local verdict, crashes = 0, 0
  if states[job] == nil then states[job] = redis.call('GET', job .. ':state') or '' end
  if redis.call('HEXISTS', feed .. ':done:' .. ARGV[i + 2], field) == 1 then
    verdict = 1
    redis.call('HDEL', feed .. ':window', doc)
    redis.call('HDEL', feed .. ':starts', doc)
    redis.call('HINCRBY', job .. ':stats', 'skipped', 1)
  elseif verdicts[states[job]] then
    verdict = verdicts[states[job]]
  elseif remembers and redis.call('HEXISTS', feed .. ':window', doc) == 0 then
    verdict = unknown
  else
    if i == 2 then make_table(feed .. ':starts') end -- table.lua; each feed comes first in some call
    crashes = redis.call('HINCRBY', feed .. ':starts', doc, 1) - 1
  end
  answer[#answer + 1] = verdict
  answer[#answer + 1] = crashes
end
return answer
