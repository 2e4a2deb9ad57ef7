-- KEYS[1] stream, KEYS[2] cursor. ARGV: epoch, max_len (0: none), then seq, record id, topic, payload of each record.
-- Appends in sequence and stops at the first record that is refused, so that what is stored is always a prefix of what
-- was sent. The cursor moves with each append: a script that is cut short leaves the two in step. Sequences are compared
-- as text, because a number of Lua is exact up to 2^53 only.
-- Returns how many records are stored now, new or before, and why the next one is not ('' if there is none).
local function pad(s) return string.rep('0', 20 - #s) .. s end

local epoch, max_len = ARGV[1], ARGV[2]
local last = redis.call('GET', KEYS[2])
if not last then -- first record ever, or the cursor's key was lost: the stream itself knows its last id
  local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
  last = '0-0'
  if not info.err then
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then last = info[i + 1] end
    end
  end
end
local last_epoch, last_seq = string.match(last, '^(%d+)-(%d+)$')
if not last_epoch then return {0, 'CURSOR ' .. last} end
if pad(last_epoch) > pad(epoch) then return {0, 'NEWER ' .. last_epoch} end
if last_epoch ~= epoch then last_seq = '0' end

local stored = 0
for i = 3, #ARGV, 4 do
  local seq = ARGV[i]
  if pad(seq) > pad(last_seq) then
    local add = {'XADD', KEYS[1]}
    if max_len ~= '0' then
      add[3], add[4], add[5] = 'MAXLEN', '~', max_len
    end
    for _, arg in ipairs({epoch .. '-' .. seq, 'id', ARGV[i + 1], 'topic', ARGV[i + 2], 'payload', ARGV[i + 3]}) do
      add[#add + 1] = arg
    end
    local reply = redis.pcall(unpack(add))
    if reply.err then return {stored, reply.err} end
    redis.call('SET', KEYS[2], epoch .. '-' .. seq)
    last_seq = seq
  end
  stored = stored + 1
end
return {stored, ''}
