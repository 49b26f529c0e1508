-- Put before begin.lua, settle.lua, put_off.lua and budget.lua: what a job with a budget has spent, and what calls under way may
-- cost. Spent and reserved together never pass the budget by a reservation that is made here.
--
--   penstock:<job>:budget    string: its budget in millionths of a dollar, as control knows it; without this key nothing is asked
--   penstock:<job>:account   hash: reserved, the sum of the next; spent, as SQL has it; most, of the costliest call so far; over, by
--                            which a call cost more than the most it was thought to; lacking, the least refused since control looked
--   penstock:<job>:reserved  hash: "<generation>:<document>" or "batch:<tag>" -> what may be paid, what of it is paid already, the
--                            estimate of the call (0 where it is not the most), and who makes it
--   penstock:<job>:stats     hash of counters: cost_microusd

local accounts = {} -- job prefix -> its account, as this call finds and changes it

local function account_of(job)
  local account = accounts[job]
  if account then return account end
  local found = redis.call('HMGET', job .. ':account', 'reserved', 'spent', 'most', 'over')
  local counted = tonumber(redis.call('HGET', job .. ':stats', 'cost_microusd') or '0')
  account = {
    reserved = tonumber(found[1] or '0'), spent = math.max(counted, tonumber(found[2] or '0')),
    most = tonumber(found[3] or '0'), over = tonumber(found[4] or '0'),
  }
  accounts[job] = account
  return account
end

-- The name of a document's reservation; its feed's prefix begins with that of its job.
local function reservation(job, scope, doc)
  return string.sub(scope, #job + 2) .. ':' .. doc
end

local function change(job, name, value)
  accounts[job][name] = value
  redis.call('HSET', job .. ':account', name, string.format('%.0f', math.max(0, value)))
end

-- What is reserved under a name: the amount, what of it is paid, the estimate and who makes the call; zeros for nothing.
local function held(job, name)
  local entry = redis.call('HGET', job .. ':reserved', name) or ''
  local amount, paid, estimate, owner = string.match(entry, '^(%d+) (%d+) (%d+) (.+)$')
  return tonumber(amount or '0'), tonumber(paid or '0'), tonumber(estimate or '0'), owner or '?'
end

local function hold(job, name, before, amount, paid, estimate, owner)
  local account = account_of(job)
  if amount > 0 then
    redis.call('HSET', job .. ':reserved', name, string.format('%.0f %.0f %.0f %s', amount, paid, estimate, owner))
  elseif before > 0 then
    redis.call('HDEL', job .. ':reserved', name)
  end
  if amount ~= before then change(job, 'reserved', account.reserved + amount - before) end
end

-- Reserve for a call beside what the item has paid already; false where the budget has no room for it.
local function reserve(job, name, budget, paid, estimate, is_most, owner)
  local account, before = account_of(job), held(job, name)
  local call = estimate
  if call > 0 then
    call = is_most and call + account.over or account.most > 0 and account.most or call
  end
  local wanted = paid + call - before
  if call > 0 and wanted > 0 and account.spent + account.reserved + wanted > budget then
    local lacking = tonumber(redis.call('HGET', job .. ':account', 'lacking') or '0')
    if lacking == 0 or wanted < lacking then redis.call('HSET', job .. ':account', 'lacking', string.format('%.0f', wanted)) end
    return false
  end
  hold(job, name, before, paid + call, paid, is_most and estimate or 0, owner)
  return true
end

-- What begin.lua answers to an item of a job: nil where it may start.
local function objection(job, scope, doc, budget, call)
  if not call and not budget then return nil end
  if not call or not budget then return 8 end
  local paid, estimate, is_most, owner = unpack(call)
  return not reserve(job, reservation(job, scope, doc), tonumber(budget), paid, estimate, is_most == 1, owner) and 7 or nil
end

-- A call has ended, and what its item cost in this attempt is counted as spent: nothing is reserved for it any more.
local function conclude(job, name, cost)
  local amount, paid, estimate = held(job, name)
  if amount == 0 then return end
  local account, call = account_of(job), cost - paid
  if call > account.most then change(job, 'most', call) end
  if estimate > 0 and call - estimate > account.over then change(job, 'over', call - estimate) end
  hold(job, name, amount, 0, 0, 0, '?')
end

-- The item is finished. A call that is under way for it, since a batch was faster, ends by itself and is paid.
local function forget_paid(job, name)
  local amount, paid = held(job, name)
  if amount <= paid then hold(job, name, amount, 0, 0, 0, '?') end
end

-- No call is under way for an item; what it has paid is not counted as spent yet.
local function keep_paid(job, name, paid)
  local amount, _, _, owner = held(job, name)
  if amount > 0 or paid > 0 then hold(job, name, amount, paid, paid, 0, owner) end
end

