// opencode as its plugin sees it: sessions with messages, a prompt that is admitted tells `chat.message`, a turn that is over
// tells `session.idle`. Commands come as lines: begin, busy, idle, ask, answered, unseen, refuse, slow, free.
import fs from "node:fs"
import { createInterface } from "node:readline"
import { SvcPlugin } from "./plugin.mjs"

const session = "ses_1"
const messages = []
const how = { seen: true, refuse: false }
let plugin, isBusy = false, turns = 0, release = []
const say = (word) => process.stdout.write(JSON.stringify(word) + "\n")

const admit = async (parts) => {
  while (release.length && how.slow) await new Promise((free) => release.push(free))
  const info = { id: `msg_${messages.length}`, role: "user", sessionID: session }
  messages.push({ info, parts })
  fs.appendFileSync("given.jsonl", JSON.stringify(parts.map((part) => part.text).join("\n")) + "\n")
  if (how.seen) await plugin["chat.message"]({ sessionID: session }, { message: info, parts: [...parts] })
}

const event = (type, more) => plugin.event({ event: { type, properties: { sessionID: session, ...more } } })

const client = {
  _client: { post: async () => ({}) },
  session: {
    promptAsync: async ({ path, body }) => {
      if (path.id !== session || how.refuse) return { error: { name: "Refused" } }
      if (how.slow) await new Promise((free) => release.push(free))
      await admit(body.parts)
      if (!isBusy) {
        const words = `words ${++turns}`
        await plugin["experimental.text.complete"]({ sessionID: session, messageID: `msg_a${turns}` }, { text: words })
        await event("session.idle")
      }
      return { response: { status: 204 } }
    },
    messages: async ({ path }) => (path.id === session ? { data: messages } : { error: { name: "NotFound" } }),
  },
}
plugin = await SvcPlugin({ client, directory: process.cwd() })

const commands = {
  begin: () => event("session.created", { info: { id: session, directory: process.cwd() } }),
  busy: () => ((isBusy = true), admit([{ type: "text", text: "a person's prompt" }])),
  idle: () => ((isBusy = false), event("session.idle")),
  ask: () => event("permission.asked", { id: "per_1", permission: "bash", patterns: ["ls"], always: [], metadata: {}, tool: { callID: "c" } }),
  answered: () => event("permission.replied", { requestID: "per_1", reply: "once" }),
  unseen: () => (how.seen = false),
  refuse: () => (how.refuse = true),
  slow: () => (how.slow = true),
  free: () => ((how.slow = false), release.splice(0).forEach((free) => free())),
}
for await (const line of createInterface({ input: process.stdin })) {
  await commands[line]()
  say(line)
}
