-- Put documents of one feed into the queue, each at most once, unless Redis has lost what it held.
--
-- KEYS[1] penstock:epoch                 string, the epoch that callers expect; KEYS[4] penstock:epoch:name, that of the latest rebuild
-- KEYS[2] <queue>                        kombu's list: LPUSH here, consumers RPOP at the other end; urgent.lua
-- KEYS[3] penstock:<job>:<gen>:window    hash document id -> position
-- computed: penstock:<job>:<gen>:done:<n>  hash, completed set (prefix in ARGV[2])
-- ARGV[1] epoch, ARGV[2] prefix "penstock:<job>:<gen>:done:", ARGV[3] 1 when the messages are urgent, else 0,
-- ARGV[4] 1 for documents whose message is lost: what is in the window is queued all the same; else 0,
-- ARGV[5] msgpack list of documents (at most 500), each {document id, position, bucket number, completed-set field}; the field
-- is false where it is the document's id, else the index of the argument that holds it, ARGV[6] the latest rebuild when the caller looked,
-- or "*" (of a job that ended before a later one Redis may know nothing), then one raw message per document, in this order, then the fields.
-- Returns {published, done, in window}, zeros where the job was purged, or the epoch found (a string, "" for none or since rebuilt) and nothing is done.
-- The first write needs memory, so a full Redis refuses the whole call.
-- A call of Redis from Lua costs as much as what it does, and so does each argument: hence one HMGET, HSET and LPUSH for all.

local MESSAGES = 6 -- arguments before the first message
local DOC, POSITION, BUCKET, FIELD = 1, 2, 3, 4

local epoch = redis.call('GET', KEYS[1]) or ''
if epoch ~= ARGV[1] then return epoch end
if ARGV[6] ~= '*' and ARGV[6] ~= (redis.call('GET', KEYS[4]) or '') then return '' end
if is_purged(job_of(ARGV[2])) then return {0, 0, 0} end
local urgent, again = ARGV[3] == '1', ARGV[4] == '1'
local docs = cmsgpack.unpack(ARGV[5])

local left, ids = {}, {} -- indices and ids of documents that are not finished
for i, doc in ipairs(docs) do
  local field = doc[FIELD] and ARGV[doc[FIELD]] or doc[DOC]
  if redis.call('HEXISTS', ARGV[2] .. doc[BUCKET], field) == 0 then
    left[#left + 1] = i
    ids[#ids + 1] = doc[DOC]
  end
end
if #left == 0 then return {0, #docs, 0} end

local known = redis.call('HMGET', KEYS[3], unpack(ids))
local messages, window, met = {}, {}, {}
for at, i in ipairs(left) do
  local id = ids[at]
  if again or not (known[at] or met[id]) then
    messages[#messages + 1] = ARGV[MESSAGES + i]
    if not known[at] then
      window[#window + 1] = id
      window[#window + 1] = docs[i][POSITION]
    end
    met[id] = true
  end
end
if #window > 0 then redis.call('HSET', KEYS[3], unpack(window)) end
if urgent and #messages > 0 then
  queue_urgent(KEYS[2], messages)
elseif #messages > 0 then
  queue_behind(KEYS[2], messages)
end
return {#messages, #docs - #left, #left - #messages}
