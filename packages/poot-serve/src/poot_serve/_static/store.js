// Conversations and settings, kept in this browser alone.

const KEYS = { chats: "poot.chats", current: "poot.current", sampling: "poot.sampling", key: "poot.key" };

function read(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? fallback;
  } catch {
    return fallback;
  }
}

/** Everything that outlives the page; `onFull` is called when the browser takes no more. */
export class Store {
  constructor(onFull) {
    this.onFull = onFull;
    this.chats = read(KEYS.chats, []).filter((chat) => chat && Array.isArray(chat.messages));
    this.currentId = read(KEYS.current, null);
    this.sampling = read(KEYS.sampling, {});
    this.apiKey = read(KEYS.key, "");
  }

  get current() {
    return this.chats.find((chat) => chat.id === this.currentId) ?? null;
  }

  /** Add an empty conversation and make it the current one; an empty one is used again. */
  add() {
    const empty = this.chats.find((chat) => chat.messages.length === 0);
    const chat = empty ?? { id: newId(), title: "", system: "", messages: [], at: Date.now() };
    if (!empty) this.chats.unshift(chat);
    this.currentId = chat.id;
    this.save();
    return chat;
  }

  remove(id) {
    this.chats = this.chats.filter((chat) => chat.id !== id);
    if (this.currentId === id) this.currentId = this.chats[0]?.id ?? null;
    this.save();
  }

  clear() {
    this.chats = [];
    this.currentId = null;
    this.save();
  }

  save() {
    try {
      localStorage.setItem(KEYS.chats, JSON.stringify(this.chats));
      localStorage.setItem(KEYS.current, JSON.stringify(this.currentId));
      localStorage.setItem(KEYS.sampling, JSON.stringify(this.sampling));
      localStorage.setItem(KEYS.key, JSON.stringify(this.apiKey));
    } catch {
      this.onFull();
    }
  }
}

function newId() {
  return Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
}
