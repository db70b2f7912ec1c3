// and taken away by `svc uninstall`; a changed file is put right by the next `svc install`.
//
// Tells the svc daemon what happens in a session and gives the model what it answers: one short request for each
// event, to this machine. A daemon that is away, slow or wrong changes nothing: nothing here throws. What it could not be
// told `svc hook` keeps until it is back.
import { spawn } from "node:child_process"
import { createHash, randomUUID } from "node:crypto"
import { constants } from "node:fs"
import { open, stat } from "node:fs/promises"
import { request } from "node:http"
import { homedir } from "node:os"
import path from "node:path"

const settings = @SETTINGS@
// Milliseconds that a person or a model may be kept waiting. The variable is for slow machines, as with `svc hook`.
const PATIENCE = Number(process.env.SVC_HOOK_DEADLINE_MS) || 300

const home =
  settings.home ?? process.env.SVC_HOME ?? path.join(process.env.XDG_DATA_HOME || path.join(homedir(), ".local/share"), "svc")
// The daemon of this data folder listens there, and sees which process asks: it needs no secret from here.
const socketPath = path.join(home, "svc.sock")
const token = process.env.SVC_TOKEN?.trim()
const identity = token ? { Authorization: `Bearer ${token}` } : { "Svc-Process": String(process.pid) }

// How the server is started says where the program is.
let command = ["svc", "stdio"]

/** Leaves an event to `svc hook`. With its id, so that it counts once if the daemon has it after all. */
const keep = (id, payload) => {
  const words = command.flatMap((word, place) => (place && word === "stdio" ? ["hook", "opencode", "--again", id] : [word]))
  const child = spawn(words[0], words.slice(1), { stdio: ["pipe", "ignore", "ignore"], detached: true })
  child.on("error", () => {})
  child.stdin.on("error", () => {})
  child.stdin.end(JSON.stringify(payload))
  child.unref()
}

/** Sends a request, and gives status and text of its answer. */
const post = async (body) => {
  const signal = AbortSignal.timeout(PATIENCE)
  if ((await stat(socketPath)).uid !== process.getuid()) throw new Error("another user's socket")
  return await new Promise((resolve, reject) => {
    // opencode runs in Bun, where an aborted request emits `close` and no `error`.
    signal.addEventListener("abort", () => reject(signal.reason), { once: true })
    const headers = {
      Host: "localhost", "Content-Type": "application/json", Accept: "application/json",
      "Content-Length": Buffer.byteLength(body), ...identity,
    }
    const sent = request({ socketPath, path: "/mcp", method: "POST", headers, signal }, (answer) => {
      const chunks = []
      answer.on("data", (chunk) => chunks.push(chunk))
      answer.on("error", reject)
      answer.on("end", () => resolve({ status: answer.statusCode, text: Buffer.concat(chunks).toString("utf8") }))
    })
    sent.on("error", reject)
    sent.end(body)
  })
}

/** Reads lines of the daemon until it ends them, and passes each on; gives the status of the answer, if there was one. */
const follow = (path, onWord) =>
  new Promise((resolve) => {
    const headers = { Host: "localhost", "Content-Length": 0, ...identity }
    const held = request({ socketPath, path, method: "POST", headers }, (answer) => {
      // The daemon says something every second.
      const silence = () => {
        const timer = setTimeout(() => answer.destroy(), 2000)
        timer.unref?.()
        return timer
      }
      let timer = silence()
      const decoder = new TextDecoder()
      let text = ""
      answer.on("data", (chunk) => {
        clearTimeout(timer)
        timer = silence()
        text += decoder.decode(chunk, { stream: true })
        const lines = text.split("\n")
        text = lines.pop()
        for (const line of lines) onWord(JSON.parse(line))
      })
      answer.on("error", () => {})
      answer.on("close", () => (clearTimeout(timer), resolve(answer.statusCode)))
    })
    // A process that has nothing else to do may end.
    held.on("socket", (socket) => socket.unref?.())
    held.on("error", () => resolve())
    held.end()
  })

/** Holds a prompt until the daemon has an answer to it, or it is over; gives the answer. */
const hold = (id) =>
  new Promise((resolve) => {
    // The daemon may hold the earlier connection for a moment.
    let conflicts = 5
    const begin = async () => {
      let isOver = false
      const status = await follow(`/v1/prompts/${id}/hold`, (word) => {
        if (word.state === "answer") resolve(word.answer)
        isOver ||= word.state !== "open"
      })
      // A daemon that was away offers the options again to whoever holds the prompt again.
      const isRefused = status && status !== 200 && status < 429 && !(status === 409 && conflicts-- > 0)
      if (isOver || isRefused) return resolve()
      setTimeout(begin, 1000).unref?.()
    }
    void begin()
  })

/** Tells the daemon what became of something that it asked for. */
const told = (path, body) =>
  new Promise((resolve) => {
    const text = body ? JSON.stringify(body) : ""
    const headers = { Host: "localhost", "Content-Length": Buffer.byteLength(text), ...identity }
    if (body) headers["Content-Type"] = "application/json"
    const sent = request({ socketPath, path, method: "POST", headers }, (answer) => {
      answer.resume()
      answer.on("close", resolve)
    })
    sent.on("error", resolve)
    sent.end(text)
  })

/** Says that the answer to a prompt was passed on. */
const printed = (id) => told(`/v1/prompts/${id}/printed`)

// What all plugins of this process know together: opencode makes one for each folder, and may load this file again.
const shared = (globalThis[Symbol.for("svc.plugin")] ??= { clients: new Map(), given: new Map(), isFollowing: false })

/** Hands a text to a session, as a person's prompt: an idle one begins a turn, in a turn it goes with the next model call. */
const give = async (session, text) => {
  const client = shared.clients.get(session)
  if (!client) return "refused"
  try {
    const body = { parts: [{ type: "text", text }] }
    const answer = await client.session.promptAsync({ path: { id: session }, body })
    return answer?.error ? "refused" : "taken"
  } catch {
    // It may have arrived: the session shows it.
    return "unknown"
  }
}

/** Which of these messages are in a session. */
const look = async (session, marks) => {
  const client = shared.clients.get(session)
  if (!client) return { state: "unreadable" }
  try {
    const answer = await client.session.messages({ path: { id: session } })
    if (!Array.isArray(answer?.data)) return { state: "unreadable" }
    // Prompts, and what tools gave: hooks hand messages over with both. What a model says is no sign that it was given one.
    const read = (role, part) => (role === "user" ? part.text : part.type === "tool" ? part.state?.output : undefined)
    const texts = answer.data.flatMap((it) => (it.parts ?? []).map((part) => String(read(it.info?.role, part) ?? "")))
    return { state: "shows", messages: marks.filter(([, mark]) => texts.some((text) => text.includes(mark))).map(([id]) => id) }
  } catch {
    return { state: "unreadable" }
  }
}

/** Does what the daemon says of a hand-over, each once, and tells it what came of that. */
const act = async ({ state, handover_id: id, session_id: session, text, marks }) => {
  const { given } = shared
  if (state === "give") {
    if (given.has(id)) return
    given.set(id, give(session, text))
    if (given.size > 1000) given.delete(given.keys().next().value)
    await told(`/v1/handovers/${id}/report`, { state: await given.get(id) })
  } else if (state === "look") {
    // A text that is on its way is in no session yet.
    await given.get(id)
    await told(`/v1/handovers/${id}/report`, await look(session, marks))
  }
}

// Milliseconds after which a daemon that is away is asked again.
const AWAY = 500

/** Is given texts for the sessions of this process, as long as it lives. */
const serve = async () => {
  // A run ends with its turn, and would not read what comes then.
  if (shared.isFollowing || process.argv.slice(1).includes("run")) return
  shared.isFollowing = true
  for (;;) {
    const status = await follow("/v1/handovers/hold", (word) => void act(word).catch(() => {}))
    // A daemon that does not know of it, or a credential that is none of a process.
    if (status >= 400 && status < 500) await new Promise((resolve) => setTimeout(resolve, 60000).unref?.())
    else await new Promise((resolve) => setTimeout(resolve, AWAY).unref?.())
  }
}

/** What the client's own server takes for an answer: the path below the prompt, and the body. */
const reply = (asked, { option_id: option, text, answers }) => {
  if (asked.permission) return ["permission", "reply", { reply: option, ...(text && { message: text }) }]
  if (option === "reject") return ["question", "reject", {}]
  const questions = asked.questions ?? []
  const label = (number) => questions[0]?.options?.[number - 1]?.label
  const one = option ? label(Number(option.replace("choice_", ""))) : text
  const all = questions.map((it) => [answers?.[it.question] ?? one].flat().filter(Boolean))
  return ["question", "reply", { answers: all }]
}

/**
 * The secret of a session that another process made known, as `svc hook` reads it: without it a session that goes on in this
 * process stays that of the one before. Nothing if there is none, or another user could have written or read the file.
 */
const secretOf = async (session) => {
  let file
  try {
    const name = createHash("sha256").update(session).digest("hex")
    file = await open(path.join(home, "sessions", name), constants.O_RDONLY | constants.O_NOFOLLOW)
    const { uid, mode } = await file.stat()
    if (uid !== process.getuid() || mode & 0o077) return
    return (await file.readFile("utf8")).trim() || undefined
  } catch {
    return
  } finally {
    await file?.close()
  }
}

// Events that may be the first of a session that goes on in this process, as `svc hook` has them.
const begins = ({ hook, event }) => hook === "chat.message" || event?.type === "session.created"

/** The daemon's answer to an event; nothing if it cannot be asked. */
const ask = async (session, id, payload, lost) => {
  try {
    const secret = begins(payload) ? await secretOf(session) : undefined
    const more = { ...(lost.length && { lost }), ...(secret && { secret }) }
    const call = { name: "hook_event", arguments: { client: "opencode", id, pid: process.pid, payload, ...more } }
    const answer = await post(JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: call }))
    // What it does not want it would not want the next time.
    return answer.status < 500 ? JSON.parse(answer.text) : undefined
  } catch {
    return
  }
}

// Events whose answers came too late or not at all, by session: the next event of the session says so, or it would be taken
// for a sign that the model saw them.
const lost = new Map()

/** What the daemon says to an event, for the model; or nothing. `onHeld` gets the id of a prompt that is to be held. */
const tell = async (session, payload, onHeld) => {
  try {
    const id = `opencode-${randomUUID()}`
    const unseen = lost.get(session) ?? []
    const answer = await ask(session, id, payload, unseen)
    if (!answer) {
      lost.set(session, [...(lost.get(session) ?? []), id].slice(-1000))
      return keep(id, payload)
    }
    const left = (lost.get(session) ?? []).filter((it) => !unseen.includes(it))
    if (left.length) lost.set(session, left)
    else lost.delete(session)
    // While another process of opencode has the session. The next prompt tries again.
    if (answer.result?.isError && payload.event?.type === "session.created") begun.delete(session)
    const held = answer.result?.isError ? undefined : answer.result?.structuredContent?.svc_held
    if (typeof held === "string" && onHeld) onHeld(held)
    const context = answer.result?.isError ? undefined : answer.result?.structuredContent?.context
    return typeof context === "string" && context ? context : undefined
  } catch {
    return
  }
}

// A sub-agent is a session of its own here; to the daemon it is a part of the one that it works for.
const parents = new Map()
const root = (id) => {
  let seen = 0
  while (parents.has(id) && seen++ < 32) id = parents.get(id)
  return id
}

// Sessions that the daemon has heard of from here.
const begun = new Map()
const begin = (id, payload, client) => {
  shared.clients.set(id, client)
  if (!begun.has(id)) {
    const told = tell(id, payload)
    begun.set(id, told)
    // The daemon knows of this process only then.
    void told.then(serve)
  }
  return begun.get(id)
}

// What the model said last in the present turn of a session: the texts of one message, and which that is.
const said = new Map()
// Characters of it that the daemon is told.
const WORDS = 60000

let parts = 0
// An id that sorts behind those of the message's own parts.
const partID = () => `prt_zz${Date.now().toString(36)}${(parts++).toString(36).padStart(4, "0")}svc`

const EVENTS = ["session.created", "session.idle", "session.error", "session.status", "session.compacted", "session.deleted"]
// What a person is asked, by a sub-agent too: its session shows the prompt.
const PROMPTS = ["permission.asked", "permission.replied", "question.asked", "question.replied", "question.rejected"]

// Sessions that wait for the end of a usage limit.
const limited = new Set()
// Milliseconds after which opencode asks again at the latest if its vendor names no time.
const OWN_RETRY = 30000

/** Whether the daemon is to hear of a session's status: that its vendor refuses for a while, and that it goes on. */
const tellsOfLimit = (id, { type, next } = {}) => {
  if (type === "retry") return next - Date.now() > OWN_RETRY && Boolean(limited.add(id))
  return limited.delete(id) && type === "busy"
}

export const SvcPlugin = async ({ client, directory }) => {
  /** Passes the answer to a held prompt on to the client; its own event tells what it took. */
  const answer = async (held, asked) => {
    try {
      const given = await hold(held)
      if (!given) return
      const [kind, action, body] = reply(asked, given)
      await client._client.post({ url: `/${kind}/${asked.id}/${action}`, body, headers: { "Content-Type": "application/json" } })
      await printed(held)
    } catch {
      // The dialog stands all the time.
    }
  }
  /** A call of a tool, for the session that it is a part of. */
  const use = (hook, input, output) => {
    const session = root(input.sessionID)
    const agent = session === input.sessionID ? {} : { agent_id: input.sessionID }
    return tell(session, { hook, cwd: directory, ...agent, input: { ...input, sessionID: session }, output })
  }
  return {
    config: async (config) => {
      const given = config?.mcp?.svc?.command
      if (Array.isArray(given) && given.includes("stdio")) command = given
    },
    event: async ({ event }) => {
      const id = event?.properties?.sessionID ?? event?.properties?.info?.id
      // Messages have parents, too.
      const parent = event?.type?.startsWith("session.") ? event.properties?.info?.parentID : undefined
      if (id && parent) parents.set(id, parent)
      if (id && PROMPTS.includes(event?.type)) {
        const session = root(id)
        const agent = session === id ? {} : { agent_id: id }
        const asked = { type: event.type, properties: { ...event.properties, sessionID: session } }
        await tell(session, { hook: "event", cwd: directory, ...agent, event: asked }, (held) => answer(held, event.properties))
        return
      }
      if (!id || parents.has(id) || !EVENTS.includes(event?.type)) return
      if (event.type === "session.status" && !tellsOfLimit(id, event.properties.status)) return
      const payload = { hook: "event", cwd: directory, event }
      if (event.type === "session.idle") payload.last_assistant_message = said.get(id)?.text
      if (event.type === "session.deleted") said.delete(id), shared.clients.delete(id)
      await (event.type === "session.created" ? begin(id, payload, client) : tell(id, payload))
    },
    "chat.message": async (input, output) => {
      if (!input?.sessionID || parents.has(input.sessionID)) return
      const id = input.sessionID
      said.delete(id)
      // One that was made by another process goes on in this one.
      const event = { type: "session.created", properties: { sessionID: id } }
      await begin(id, { hook: "event", cwd: directory, source: "resume", event }, client)
      const text = await tell(id, { hook: "chat.message", cwd: directory, input, output })
      if (!text || !Array.isArray(output?.parts)) return
      output.parts.push({ id: partID(), sessionID: input.sessionID, messageID: output.message.id, type: "text", text, synthetic: true })
    },
    "experimental.text.complete": async (input, output) => {
      if (!input?.sessionID || parents.has(input.sessionID) || typeof output?.text !== "string" || !output.text) return
      const known = said.get(input.sessionID)
      const before = known && known.message === input.messageID ? `${known.text}\n` : ""
      said.set(input.sessionID, { message: input.messageID, text: (before + output.text).slice(0, WORDS) })
    },
    "tool.execute.before": async (input, output) => {
      // A turn is not over while a tool runs, and the daemon's own tools do not hear from opencode in which session they are called.
      if (input?.sessionID) await use("tool.execute.before", input, output)
    },
    "tool.execute.after": async (input, output) => {
      if (!input?.sessionID) return
      const text = await use("tool.execute.after", input, output)
      if (!text) return
      if (typeof output?.output === "string") output.output += `\n\n${text}`
      else if (Array.isArray(output?.content)) output.content.push({ type: "text", text })
    },
  }
}
