-- ARGV: kind, epoch, max_len (0: none), token and expected cursor ('' where there is no fence), the cursor's @BASE ('': none),
-- then seq, entry id, record id, topic and payload of each record.
-- Appends in sequence and stops at the first record that is refused, so that what is stored is always a prefix of what
-- was sent. The cursor moves once, behind the last append: Redis writes and passes on the effects of a script as
-- one, and once it has begun to write neither a full memory nor a client can end it.
-- Returns how many records are stored now, new or before, why the next one is not ('' if there is none), and the cursor.
local kind, epoch, max_len, token, expected, base = unpack(ARGV, 1, 6)
if token ~= '' then
  local holder = redis.call('GET', KEYS[3]) or ''
  if holder ~= token then return {0, 'FENCED ' .. holder, ''} end
end
local last, why = far(kind)
if not last then return {0, why, ''} end
if expected ~= '' and last ~= expected then return {0, 'ELSEWHERE ' .. last, last} end
local last_epoch, last_seq = string.match(last, '^(%d+)-(%d+)')
if pad(last_epoch) > pad(epoch) then return {0, 'NEWER ' .. last_epoch, last} end
if last_epoch ~= epoch then last_seq = '0' end

local function append(id, record_id, topic, payload)
  if kind == 'list' then
    local reply = redis.pcall('RPUSH', KEYS[1], payload)
    if type(reply) == 'number' and max_len ~= '0' then redis.call('LTRIM', KEYS[1], '-' .. max_len, -1) end
    return reply
  end
  if max_len == '0' then
    return redis.pcall('XADD', KEYS[1], id, 'id', record_id, 'topic', topic, 'payload', payload)
  end
  return redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', max_len, id, 'id', record_id, 'topic', topic, 'payload', payload)
end

local stored, moved, refusal = 0, '', ''
for i = 7, #ARGV, 5 do
  local seq = ARGV[i]
  if moved ~= '' or pad(seq) > pad(last_seq) then -- sequences grow, so what follows a new record is new
    local reply = append(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
    if type(reply) == 'table' and reply.err then
      refusal = reply.err
      break
    end
    moved = seq
  end
  stored = stored + 1
end
if moved ~= '' then last = epoch .. '-' .. moved .. base end
-- A repeat writes too: WAIT and WAITAOF wait for what their own connection wrote.
if stored > 0 then redis.call('SET', KEYS[2], last) end
return {stored, refusal, last}
