-- Put before settle.lua and put_off.lua: what a call adds to the counters of each job, written at its end with one command each.

local sums = {} -- job prefix -> counter of penstock:<job>:stats -> amount

local function count(job, name, amount)
  if amount == 0 then return end
  local stats = sums[job]
  if not stats then
    stats = {}
    sums[job] = stats
  end
  stats[name] = (stats[name] or 0) + amount
end

local function count_spent(job, prompt_tokens, completion_tokens, cost_microusd, calls)
  count(job, 'prompt_tokens', prompt_tokens)
  count(job, 'completion_tokens', completion_tokens)
  count(job, 'cost_microusd', cost_microusd)
  count(job, 'calls', calls)
end

local function write_sums()
  for job, stats in pairs(sums) do
    for name, amount in pairs(stats) do
      redis.call('HINCRBY', job .. ':stats', name, string.format('%.0f', amount))
    end
  end
end

