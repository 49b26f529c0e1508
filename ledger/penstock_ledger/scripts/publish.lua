-- Put documents of one feed into the queue, each at most once, unless Redis forgot who it is.
--
-- KEYS[1] penstock:epoch                 string, the epoch that callers expect
-- KEYS[2] <queue>                        kombu's list: LPUSH here, consumers RPOP at the other end; urgent.lua
-- KEYS[3] penstock:<job>:<gen>:window    hash document id -> position
-- computed: penstock:<job>:<gen>:done:<n>  hash, completed set (prefix in ARGV[2])
-- ARGV[1] epoch, ARGV[2] prefix "penstock:<job>:<gen>:done:", ARGV[3] 1 when the messages are urgent, else 0,
-- ARGV[4] 1 for documents whose message is lost: what is in the window is queued all the same; else 0,
-- then per document: bucket number, completed-set field, document id, position, raw message (at most 500 documents)
-- Returns {published, done, in window}, or the epoch found (a string, "" for none) and nothing is done.
-- The first write needs memory, so a full Redis refuses the whole call.

local epoch = redis.call('GET', KEYS[1]) or ''
if epoch ~= ARGV[1] then return epoch end

local published, done, in_window, urgent = 0, 0, 0, {}
for i = 5, #ARGV, 5 do
  if redis.call('HEXISTS', ARGV[2] .. ARGV[i], ARGV[i + 1]) == 1 then
    done = done + 1
  elseif redis.call('HSETNX', KEYS[3], ARGV[i + 2], ARGV[i + 3]) == 0 and ARGV[4] ~= '1' then
    in_window = in_window + 1
  else
    if ARGV[3] == '1' then urgent[#urgent + 1] = ARGV[i + 4] else redis.call('LPUSH', KEYS[2], ARGV[i + 4]) end
    published = published + 1
  end
end
if #urgent > 0 then queue_urgent(KEYS[2], urgent) end
return {published, done, in_window}
