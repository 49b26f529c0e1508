-- Put before begin.lua, settle.lua, put_off.lua and budget.lua: what a job with a budget has spent, and what calls under way may
-- cost. Spent and reserved together never pass the budget by a reservation that is made here.
--
--   penstock:<job>:budget    string: its budget in millionths of a dollar, as control knows it; without this key nothing is asked
--   penstock:<job>:account   hash: reserved, the sum of the next; spent, as SQL has it; most, of the costliest call so far; over, by
--                            which a call cost more than the most it was thought to; lacking, the least refused since control looked;
--                            tenant, the key of the next but one where the tenant has a budget, too
--   penstock:<job>:reserved  hash: "<generation>:<document>" or "batch:<tag>" -> what may be paid, what of it is paid already, the
--                            estimate of the call (0 where it is not the most), and who makes it
--   penstock:<job>:stats     hash of counters: cost_microusd
--   penstock:tenants:<digest>:<month>       hash, of a tenant's jobs that were accepted in this month: budget; base, what jobs have
--                            spent that are not in the next hash; held, what those in it have spent and reserved; reserved, of that;
--                            turn, which grows when a job comes into the next hash or leaves it
--   penstock:tenants:<digest>:<month>:jobs  hash: job prefix -> "<spent and reserved> <reserved>"
--
-- A script that has these functions ends with close_accounts: it tells tenants what their jobs have changed.

local accounts = {} -- job prefix -> its account, as this call finds and changes it
local tenants = {} -- key of a tenant's account -> what it has room for, likewise

local function account_of(job)
  local account = accounts[job]
  if account then return account end
  local found = redis.call('HMGET', job .. ':account', 'reserved', 'spent', 'most', 'over', 'tenant')
  local counted = tonumber(redis.call('HGET', job .. ':stats', 'cost_microusd') or '0')
  account = {
    reserved = tonumber(found[1] or '0'), spent = math.max(counted, tonumber(found[2] or '0')),
    most = tonumber(found[3] or '0'), over = tonumber(found[4] or '0'), tenant = found[5] or nil,
  }
  accounts[job] = account
  return account
end

-- What the tenant of a job may spend yet; nil for a job whose tenant has no budget. Where Redis has lost its account there is no
-- room: control brings it again.
local function room_of_tenant(account)
  local name = account.tenant
  if not name then return nil end
  if not tenants[name] then
    local found = redis.call('HMGET', name, 'budget', 'base', 'held')
    tenants[name] = tonumber(found[1] or '0') - tonumber(found[2] or '0') - tonumber(found[3] or '0')
  end
  return tenants[name]
end

local function fits(account, budget, wanted)
  local room = room_of_tenant(account)
  return account.spent + account.reserved + wanted <= budget and (not room or wanted <= room)
end

-- The name of a document's reservation; its feed's prefix begins with that of its job.
local function reservation(job, scope, doc)
  return string.sub(scope, #job + 2) .. ':' .. doc
end

local function change(job, name, value)
  local account = accounts[job]
  if name == 'reserved' and account.tenant then
    tenants[account.tenant] = room_of_tenant(account) + account.reserved - value
  end
  account[name] = value
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
  if call > 0 and wanted > 0 and not fits(account, budget, wanted) then
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
  local account = account_of(job)
  local amount, paid, estimate = held(job, name)
  if amount == 0 then return end
  local call = cost - paid
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

-- Tell tenants what this call has changed; what it counted as spent is in the counters by now. Returns the answer of the script.
local function close_accounts(answer)
  for job, account in pairs(accounts) do
    if account.tenant then
      local jobs = account.tenant .. ':jobs'
      local counted = tonumber(redis.call('HGET', job .. ':stats', 'cost_microusd') or '0')
      local now, reserved = math.max(counted, account.spent) + account.reserved, account.reserved
      local entry = redis.call('HGET', jobs, job)
      local was, was_reserved = string.match(entry or '0 0', '^(%d+) (%d+)$')
      if not entry then redis.call('HINCRBY', account.tenant, 'turn', 1) end
      if not entry or now ~= tonumber(was) or reserved ~= tonumber(was_reserved) then
        redis.call('HSET', jobs, job, string.format('%.0f %.0f', now, reserved))
        redis.call('HINCRBY', account.tenant, 'held', string.format('%.0f', now - tonumber(was)))
        redis.call('HINCRBY', account.tenant, 'reserved', string.format('%.0f', reserved - tonumber(was_reserved)))
      end
    end
  end
  return answer
end
