-- Put before settle.lua and put_off.lua: what became of the latest documents of each feed, for the stop-loss of its job.
--
--   penstock:<job>:<gen>:lately   hash: ended, documents with an outcome; dead, those of them that are dead letters; answered, first
--                                 answers to documents; missed, those of them that the job's own checks refused; cost_microusd; and
--                                 why:<reason>, of dead letters and of what was missed
--   penstock:<job>:<gen>:earlier  hash: the stretch before it. Once STRETCH documents have ended or were answered, lately becomes
--                                 earlier, so that both together are a window of STRETCH to twice as many documents

local STRETCH = 500
local stretches = {} -- feed prefix -> field -> what this call adds

local function note_lately(scope, field, amount)
  if amount == 0 then return end
  local fields = stretches[scope]
  if not fields then
    fields = {}
    stretches[scope] = fields
  end
  fields[field] = (fields[field] or 0) + amount
end

-- why: the name of a failure, or nil for an answer that was taken
local function note_first_answer(scope, why)
  note_lately(scope, 'answered', 1)
  if why then
    note_lately(scope, 'missed', 1)
    note_lately(scope, 'why:' .. why, 1)
  end
end

-- Write what was noted; returns per feed its prefix, and the fields of both stretches with their values, as Redis lists them.
local function write_lately()
  local shown = {}
  for scope, fields in pairs(stretches) do
    local lately, earlier = scope .. ':lately', scope .. ':earlier'
    for field, amount in pairs(fields) do
      redis.call('HINCRBY', lately, field, string.format('%.0f', amount))
    end
    shown[#shown + 1], shown[#shown + 2], shown[#shown + 3] =
      scope, redis.call('HGETALL', lately), redis.call('HGETALL', earlier)
    local found = redis.call('HMGET', lately, 'ended', 'answered')
    if math.max(tonumber(found[1] or '0'), tonumber(found[2] or '0')) >= STRETCH then redis.call('RENAME', lately, earlier) end
  end
  return shown
end

