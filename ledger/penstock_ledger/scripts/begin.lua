-- Ask whether items may start and, where they may, count the start before anything is paid.
--
-- KEYS[1] penstock:epoch  touched, see below; while it is not the caller's, Redis forgot, and windows tell nothing
-- KEYS[2] penstock:epoch:rebuilt  string, name of the latest rebuild; exists for a while after it, when windows are not full again
-- KEYS[3] penstock:epoch:run  run id of the server that was rebuilt
-- KEYS[4] penstock:begun:<caller>  string, if the call has a name: its latest one; computed, from ARGV:
--   penstock:<job>:state, :lane     strings: paused | cancelled | purged; the lane that it has moved to; :budget and others: account.lua
--   penstock:<job>:stats            hash: skipped grows when a finished item was delivered again
--   penstock:<job>:<gen>:done:<n>   hash, completed set
--   penstock:<job>:<gen>:starts     hash document id -> starts without a conclusion so far; put_off.lua takes them back
--   penstock:<job>:<gen>:window     hash: a finished item leaves it; only what is in it may start
-- ARGV[1] epoch, ARGV[3] lane of the worker or "", ARGV[4] name of the call or "", ARGV[5] name of a rebuild, "" or "*", see below, ARGV[2] msgpack list of feeds, 500 items at most, each {job prefix, feed prefix,
-- {document id, ...}, {bucket number, ...}, {completed-set field, ...}, {call, ...}}; a field is false where it is the id, else the
-- index of the argument that holds it; a call is false without a budget, else {paid, estimate, 1 if that is the most, who}: account.lua
-- Returns per item its reply (0 go, 1 done, 2 paused, 3 cancelled, 4 or 5 in no window, 6 in another lane, 7 no room in the budget, 8
-- another budget than the worker knows, see BeginReply, 9 go if SQL has not finished it, 10 rebuilt meanwhile), and crashes = earlier starts that never
-- came to a conclusion; with 10 the name of the rebuild
--
-- A call whose answer was lost comes again by the same name, and so does one after which SQL could not be asked: it has counted the
-- starts already, and to count them once more would call it a death of the worker.
-- A server that was started again since it was rebuilt may hold what a backup had: a queue whose documents have ended, and windows
-- that still have them. So nothing that it says to go is sure until it is rebuilt again; SQL is asked before anything is paid. What
-- is spent of a budget is as old: calls of jobs with a budget wait.
-- What a caller took from the queue before Redis was rebuilt is put there once more by the feed, and its lease is lost. So nothing
-- starts until the caller has renewed its leases, and says so by the name of the rebuild; "*" is said by who has none.
-- What is in the window is not in the completed set: what is put into the set leaves the window in the same call (settle.lua,
-- rehydrate.lua), and publish.lua puts nothing into the window that is in the set. So the set is asked about the rest only.

-- A script whose first write needs no memory may go on in a full Redis: work must drain for memory to be freed.
redis.call('PERSIST', KEYS[1])

local VERDICTS, GO, DONE, ELSEWHERE, NO_ROOM, UNSURE, REBUILT = {paused = 2, cancelled = 3, purged = 3}, 0, 1, 6, 7, 9, 10
local is_repeated = KEYS[4] and redis.call('GET', KEYS[4]) == ARGV[4]
local remembers = redis.call('GET', KEYS[1]) == ARGV[1]
local is_rebuilt = remembers and string.find(redis.call('INFO', 'server'), 'run_id:' .. (redis.call('GET', KEYS[3]) or ' '), 1, true)
local rebuilt = redis.call('GET', KEYS[2])
local is_news = rebuilt and ARGV[5] ~= '*' and ARGV[5] ~= rebuilt
local unknown, answer = rebuilt and 5 or 4, {}

local function is_finished(scope, bucket, field, doc)
  return redis.call('HEXISTS', scope .. ':done:' .. bucket, field and ARGV[field] or doc) == 1
end

local function skip(job, scope, doc, calls)
  if calls then forget_paid(job, reservation(job, scope, doc)) end
  redis.call('HDEL', scope .. ':starts', doc)
  redis.call('HINCRBY', job .. ':stats', 'skipped', 1)
end

for _, feed in ipairs(cmsgpack.unpack(ARGV[2])) do
  local job, scope, docs, buckets, fields, calls = unpack(feed)
  local state, lane, budget = unpack(redis.call('MGET', job .. ':state', job .. ':lane', job .. ':budget'))
  local verdict = VERDICTS[state or '']
  if lane and ARGV[3] ~= '' and lane ~= ARGV[3] then verdict = ELSEWHERE end
  local fed = redis.call('HMGET', scope .. ':window', unpack(docs))
  local begun = redis.call('HMGET', scope .. ':starts', unpack(docs))
  local counts, counted = {}, {} -- by document, and as HSET takes them
  for at = 1, is_repeated and #docs or 0 do begun[at] = begun[at] and begun[at] - 1 end
  for at, doc in ipairs(docs) do
    local reply, crashes = GO, 0
    if not fed[at] and is_finished(scope, buckets[at], fields[at], doc) then
      reply = DONE
      skip(job, scope, doc, calls)
    elseif verdict then
      reply = verdict
    elseif remembers and not fed[at] then
      reply = lane and ELSEWHERE or unknown -- of a job that has moved: a message from before, and it waits to be fed again
    elseif is_news then
      reply, crashes = REBUILT, rebuilt
    elseif calls and calls[at] and remembers and not is_rebuilt then
      reply = NO_ROOM
    else
      reply = objection(job, scope, doc, budget, calls and calls[at]) or GO
    end
    if reply == GO then
      crashes = counts[doc] or tonumber(begun[at] or '0')
      counts[doc] = crashes + 1
      counted[#counted + 1], counted[#counted + 2] = doc, crashes + 1
      if not is_rebuilt then reply = UNSURE end
    end
    answer[#answer + 1], answer[#answer + 2] = reply, crashes
  end
  if #counted > 0 then
    make_table(scope .. ':starts') -- table.lua
    redis.call('HSET', scope .. ':starts', unpack(counted))
  end
end
if KEYS[4] then redis.call('SET', KEYS[4], ARGV[4], 'EX', 3600) end
return close_accounts(answer)
