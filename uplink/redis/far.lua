-- Common to the scripts of streams and lists. KEYS[1] stream or list, KEYS[2] cursor, KEYS[3] fence, where there is one.
-- Sequences are compared as text, because a number of Lua is exact up to 2^53 only.
local function pad(s) return string.rep('0', 20 - #s) .. s end

-- halves returns the ten first and the ten last of a sequence's twenty digits as numbers.
local function halves(s)
  s = pad(s)
  return tonumber(string.sub(s, 1, 10)), tonumber(string.sub(s, 11))
end

-- minus returns a - b, which is exact where it is small.
local function minus(a, b)
  local a_high, a_low = halves(a)
  local b_high, b_low = halves(b)
  return (a_high - b_high) * 1e10 + (a_low - b_low)
end

-- plus returns s + n as text; n is small.
local function plus(s, n)
  local high, low = halves(s)
  low = low + n
  if low >= 1e10 then high, low = high + 1, low - 1e10 end
  local sum = string.gsub(string.format('%010.0f%010.0f', high, low), '^0+(%d)', '%1')
  return sum
end

-- top returns the last id the stream has ever had, 0-0 if there is no stream; or nil and why not.
local function top()
  local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
  if info.err then
    if string.find(info.err, 'no such key') then return '0-0' end
    return nil, info.err
  end
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end

-- far returns the cursor, EPOCH-SEQ or EPOCH-SEQ@BASE (reset.lua), or nil and why not. Where its key was lost, the newest record itself says where the far
-- side stands; a list that its readers have emptied cannot, and counts as new.
local function far(kind)
  local at = redis.call('GET', KEYS[2])
  if not at and kind == 'stream' then
    local id, why = top()
    if not id then return nil, why end
    at = id
  elseif not at then
    local newest = redis.call('LINDEX', KEYS[1], -1)
    if newest then
      local epoch, seq = string.match(newest, '"epoch":(%d+),"seq":(%d+)')
      if not epoch then return nil, 'FOREIGN' end
      at = epoch .. '-' .. seq
    end
  end
  at = at or '0-0'
  if not string.find(at, '^%d+%-%d+$') and not string.find(at, '^%d+%-%d+@%d+%-%d+$') then return nil, 'CURSOR ' .. at end
  return at
end
