-- ARGV: kind, epoch, max_len (0: none), token and expected cursor ('' where none is asked for), the cursor's @BASE ('': none), seq of the
-- first record, then of each record, whose sequences have no gap: entry id, record id, topic and payload; of a list the payload only.
-- Appends in sequence and stops at the first record that is refused, so that what is stored is always a prefix of what
-- was sent. The cursor moves once, behind the last append: Redis writes and passes on the effects of a script as
-- one, and once it has begun to write neither a full memory nor a client can end it.
-- Returns how many records are stored now, new or before, why the next one is not ('' if there is none), the cursor, and how many
-- were stored before.
local head = 7
local argv, call, key = ARGV, redis.pcall, KEYS[1]
local kind, epoch, max_len, token, expected, base, first = unpack(argv, 1, head)
if token ~= '' then
  local holder = redis.call('GET', KEYS[3]) or ''
  if holder ~= token then return {0, 'FENCED ' .. holder, '', 0} end
end
local last, why = far(kind)
if not last then return {0, why, '', 0} end
if expected ~= '' and last ~= expected then return {0, 'ELSEWHERE ' .. last, last, 0} end
local last_epoch, last_seq = string.match(last, '^(%d+)-(%d+)')
if pad(last_epoch) > pad(epoch) then return {0, 'NEWER ' .. last_epoch, last, 0} end

local size = kind == 'list' and 1 or 4
local count = (#argv - head) / size
local repeats = 0
if last_epoch == epoch then repeats = math.min(count, math.max(0, minus(last_seq, first) + 1)) end
local stored, refusal = count, ''

local function is_refused(reply)
  if type(reply) ~= 'table' or not reply.err then return false end
  refusal = reply.err
  return true
end

if kind == 'list' then
  if repeats < count then
    if is_refused(call('RPUSH', key, unpack(argv, head + 1 + repeats))) then
      stored = repeats
    elseif max_len ~= '0' then
      redis.call('LTRIM', key, '-' .. max_len, -1)
    end
  end
else
  local trimming = max_len ~= '0' and #argv - 3 -- with the last one
  for i = head + 1 + 4 * repeats, #argv, 4 do
    local reply
    if i == trimming then
      reply = call('XADD', key, 'MAXLEN', '~', max_len, argv[i], 'id', argv[i + 1], 'topic', argv[i + 2], 'payload', argv[i + 3])
    else
      reply = call('XADD', key, argv[i], 'id', argv[i + 1], 'topic', argv[i + 2], 'payload', argv[i + 3])
    end
    if is_refused(reply) then
      stored = (i - head - 1) / 4
      break
    end
  end
end
if stored > repeats then last = epoch .. '-' .. plus(first, stored - 1) .. base end
-- A repeat writes too: WAIT and WAITAOF wait for what their own connection wrote.
if stored > 0 then redis.call('SET', KEYS[2], last) end
return {stored, refusal, last, repeats}
