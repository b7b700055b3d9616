-- rspamd asks spamguard what it thinks of a message, and keeps all that it does besides.
--
-- Goes to /etc/rspamd/local.d/rspamd.lua, in a container too; then `rspamadm configtest` and a
-- reload. spamguard needs a scanner door: `scanners: [{listen: rspamd://127.0.0.1:11343}]`.
-- To check: `rspamc < message` shows SPAMGUARD_SPAM, SPAMGUARD_HAM or SPAMGUARD_UNSURE.
--
-- With our header field on the message, moving it between folders teaches, as everywhere. If
-- spamguard is down or slow, mail goes on without its verdict, and the log says so once.

local url = 'http://127.0.0.1:11343/checkv2'
local weight = 1.2 -- of spamguard's score, which is 5 where it calls a message spam
local ceiling = 8 -- the most that it adds to rspamd's score, or takes away
local timeout = 2.0 -- seconds

local http = require 'rspamd_http'
local logger = require 'rspamd_logger'
local ucl = require 'ucl'
local is_silent = false

local function take_verdict(task, answer)
  for name, symbol in pairs(answer.symbols) do
    local points = math.max(-ceiling, math.min(ceiling, weight * symbol.score))
    task:insert_result(name, points, symbol.options)
  end
  local field = answer.milter.add_headers['X-Spamguard']
  if field then
    task:set_milter_reply({
      remove_headers = { ['X-Spamguard'] = 0 },
      add_headers = { ['X-Spamguard'] = { value = field, order = 0 } },
    })
  end
end

local function ask(task)
  local sender, recipients = task:get_from('smtp'), {}
  for _, recipient in ipairs(task:get_recipients('smtp') or {}) do
    table.insert(recipients, recipient.addr)
  end
  local ip = task:get_from_ip()
  http.request({
    task = task,
    url = url,
    timeout = timeout,
    body = task:get_content(),
    headers = {
      ['From'] = sender and sender[1] and sender[1].addr or '',
      ['Rcpt'] = table.concat(recipients, ','),
      ['IP'] = ip and ip:is_valid() and ip:to_string() or '',
      ['Hostname'] = task:get_hostname() or '',
      ['Helo'] = task:get_helo() or '',
      ['User'] = task:get_user() or '',
      ['Queue-Id'] = task:get_queue_id() or '',
    },
    callback = function(problem, code, body)
      local parser = ucl.parser()
      local is_read = code == 200 and parser:parse_string(body)
      if is_read then
        take_verdict(task, parser:get_object())
      elseif not is_silent then
        logger.warnx(task, 'spamguard does not answer: %s', problem or code)
      end
      is_silent = not is_read
    end,
  })
end

local id = rspamd_config:register_symbol({ name = 'SPAMGUARD', type = 'callback', callback = ask })
for _, name in ipairs({ 'SPAM', 'HAM', 'UNSURE', 'NOT_SCANNED' }) do
  local symbol = 'SPAMGUARD_' .. name
  rspamd_config:register_symbol({ name = symbol, type = 'virtual', parent = id })
  rspamd_config:set_metric_symbol({ name = symbol, score = 1.0, group = 'spamguard' })
end
