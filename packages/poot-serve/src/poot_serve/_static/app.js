// The chat page: what is shown, and what happens when a person does something.
import { ApiError, chat as askServer, health, model } from "./api.js";
import { copyButton, renderMarkdown } from "./markdown.js";
import { Store } from "./store.js";

const $ = (id) => document.getElementById(id);
const store = new Store(() => notice("The browser's storage is full: new messages are not kept."));
let underway = null; // {controller, chat} while an answer comes
let follows = true; // whether the view stays at the end

const SAMPLING = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05 },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01 },
  { name: "top_k", label: "Top k", min: 0, max: 1000, step: 1 },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.5, max: 2, step: 0.01 },
  { name: "max_tokens", label: "Longest answer, tokens", min: 1, max: 1000000, step: 1 },
  { name: "seed", label: "Seed", min: 0, max: 9007199254740991, step: 1 },
];
const IDEAS = [
  "Explain how a bicycle stays upright.",
  "Write a haiku about rain on a tin roof.",
  "Give me a Python function that checks for palindromes.",
];

// ---- what is shown ----

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

function titleOf(chat) {
  return chat?.title || chat?.messages.find((m) => m.role === "user")?.content.slice(0, 60) || "New conversation";
}

function showList() {
  const list = $("chat-list");
  list.replaceChildren(...store.chats.map((chat) => {
    const item = document.createElement("li");
    const open = button(titleOf(chat), "chat", () => { select(chat.id); hideSidebar(); });
    if (chat.id === store.currentId) open.setAttribute("aria-current", "true");
    open.addEventListener("dblclick", () => rename(chat));
    open.title = "Double-click to rename";
    const remove = button("✕", "icon remove", () => removeChat(chat));
    remove.setAttribute("aria-label", `Delete “${titleOf(chat)}”`);
    item.append(open, remove);
    return item;
  }));
}

function button(text, className, action) {
  const found = document.createElement("button");
  found.type = "button";
  found.textContent = text;
  found.className = className;
  found.addEventListener("click", action);
  return found;
}

function show() {
  const chat = store.current;
  $("chat-title").textContent = titleOf(chat);
  document.title = chat?.messages.length ? `${titleOf(chat)} · poot` : "poot";
  const messages = chat?.messages ?? [];
  $("empty").hidden = messages.length > 0;
  $("log").replaceChildren(...messages.map((message, place) => view(message, place)));
  showList();
  showBusy();
  toEnd();
}

/** Return the element of a message. */
function view(message, place) {
  const element = $("message-template").content.firstElementChild.cloneNode(true);
  element.classList.add(message.role);
  element.querySelector(".speaker").textContent = message.role === "user" ? "You" : "Assistant";
  fill(element, message);
  const actions = element.querySelector(".actions");
  actions.append(copyButton(() => message.content));
  if (message.role === "user") actions.append(button("Edit", "small", () => edit(element, place)));
  else actions.append(button("Retry", "small", () => retry(place)));
  return element;
}

/** Show the text of a message in its element. */
function fill(element, message) {
  const content = element.querySelector(".content");
  if (message.role === "user") content.textContent = message.content;
  else renderMarkdown(content, message.content);
  const reasoning = element.querySelector(".reasoning");
  reasoning.hidden = !message.reasoning;
  if (message.reasoning) reasoning.querySelector(".body").textContent = message.reasoning;
  element.querySelector(".speed").textContent = speed(message);
  element.classList.toggle("failed", Boolean(message.error));
  if (message.error) {
    const line = document.createElement("p");
    line.className = "error";
    line.textContent = message.error;
    content.append(line);
  }
}

function speed(message) {
  const parts = [];
  if (message.tokens) parts.push(`${message.tokens} tokens`);
  if (message.rate) parts.push(`${message.rate.toFixed(message.rate < 10 ? 1 : 0)} tok/s`);
  if (message.first) parts.push(`first after ${message.first.toFixed(2)} s`);
  if (message.finish === "length") parts.push("cut at its longest");
  if (message.finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

function showBusy() {
  const isBusy = underway !== null;
  $("stop").hidden = !isBusy;
  $("send").hidden = isBusy;
  $("send").disabled = !$("composer-text").value.trim();
  $("log").setAttribute("aria-busy", String(isBusy));
}

function toEnd() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
  follows = true;
}

// ---- conversations ----

function select(id) {
  stop();
  store.currentId = id;
  store.save();
  notice("");
  show();
}

function newChat() {
  stop();
  store.add();
  notice("");
  show();
  hideSidebar();
  $("composer-text").focus();
}

function rename(chat) {
  const title = prompt("Title of the conversation", titleOf(chat));
  if (title === null) return;
  chat.title = title.trim();
  store.save();
  show();
}

function removeChat(chat) {
  if (!confirm(`Delete “${titleOf(chat)}”?`)) return;
  if (underway?.chat === chat) stop();
  store.remove(chat.id);
  show();
}

function edit(element, place) {
  const chat = store.current;
  const message = chat.messages[place];
  const field = document.createElement("textarea");
  field.value = message.content;
  field.setAttribute("aria-label", "Edit the message");
  const content = element.querySelector(".content");
  const buttons = document.createElement("div");
  buttons.className = "row";
  const send = () => {
    const text = field.value.trim();
    if (!text) return;
    stop();
    chat.messages.length = place;
    ask(chat, text);
  };
  buttons.append(button("Send", "primary small", send), button("Cancel", "small", show));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
    if (event.key === "Escape") { event.stopPropagation(); show(); }
  });
  content.replaceChildren(field, buttons);
  element.classList.add("editing");
  field.rows = Math.min(12, field.value.split("\n").length + 1);
  field.focus();
}

function retry(place) {
  const chat = store.current;
  stop();
  chat.messages.length = place;
  answer(chat);
}

function ask(chat, text) {
  chat.messages.push({ role: "user", content: text });
  chat.at = Date.now();
  store.chats = [chat, ...store.chats.filter((each) => each !== chat)];
  store.save();
  answer(chat);
}

// ---- answers ----

function stop() {
  underway?.controller.abort();
}

function bodyOf(chat) {
  const messages = chat.messages
    .filter((message) => message.role === "user" || message.content)
    .map(({ role, content }) => ({ role, content }));
  if (chat.system.trim()) messages.unshift({ role: "system", content: chat.system });
  return { messages, ...store.sampling };
}

async function answer(chat) {
  notice("");
  const body = bodyOf(chat);
  const message = { role: "assistant", content: "", reasoning: "" };
  chat.messages.push(message);
  const controller = new AbortController();
  const mine = { controller, chat };
  underway = mine;
  show();
  const element = $("log").lastElementChild;
  element.classList.add("coming");
  const begun = performance.now();
  let firstAt = 0;
  let count = 0;
  const draw = throttled(() => {
    if (store.current !== chat || !element.isConnected) return;
    fill(element, message);
    element.querySelector(".reasoning").open = !message.content;
    if (follows) $("scroll").scrollTop = $("scroll").scrollHeight;
  });
  try {
    for await (const part of askServer(body, store.apiKey, controller.signal)) {
      if (part.content || part.reasoning) {
        count += 1;
        firstAt ||= performance.now();
      }
      message.content += part.content;
      message.reasoning += part.reasoning;
      message.finish = part.finish ?? message.finish;
      message.tokens = part.usage?.completion_tokens ?? Math.max(count, message.tokens ?? 0);
      const seconds = (performance.now() - firstAt) / 1000;
      if (count > 1 && seconds > 0 && (part.content || part.reasoning)) message.rate = (count - 1) / seconds;
      if (firstAt) message.first = (firstAt - begun) / 1000;
      draw();
    }
  } catch (error) {
    if (error.name === "AbortError") message.finish = "stopped";
    else message.error = error instanceof ApiError ? error.message : String(error);
    if (error.status === 401) needKey();
  } finally {
    if (underway === mine) underway = null;
    if (!message.content && !message.reasoning && message.finish === "stopped") {
      chat.messages = chat.messages.filter((each) => each !== message);
    }
    store.save();
    if (store.current === chat) {
      const top = $("scroll").scrollTop;
      const stays = follows;
      show();
      if (!stays) { $("scroll").scrollTop = top; follows = false; }
    }
    showBusy();
    $("model-name").dataset.said = "";
  }
}

function needKey() {
  notice("This server needs an API key: enter it in the settings.");
  openSettings();
  $("api-key").focus();
}

/** Return a function that runs `work` at most once a frame or 60 ms, and always once more after a call. */
function throttled(work) {
  let isPlanned = false;
  return () => {
    if (isPlanned) return;
    isPlanned = true;
    setTimeout(() => requestAnimationFrame(() => { isPlanned = false; work(); }), 40);
  };
}

// ---- the model ----

async function watchModel() {
  const lamp = $("lamp");
  const found = await health();
  lamp.className = found.state;
  if (found.state === "ok") {
    try {
      const served = await model(store.apiKey);
      $("model-name").textContent = served.id;
      $("model-name").title = `context ${served.max_model_len} tokens`;
    } catch (error) {
      if (error.status === 401 && !$("settings").open) needKey();
      $("model-name").textContent = "needs a key";
    }
  } else {
    const percent = found.progress === null ? "" : ` ${Math.round(found.progress * 100)} %`;
    const words = { loading: `loading${percent}`, failed: "failed", draining: "stopping", away: "not reached" };
    $("model-name").textContent = words[found.state] ?? found.state;
    $("model-name").title = found.detail;
  }
  setTimeout(watchModel, found.state === "ok" ? 15000 : 1000);
}

// ---- settings ----

function makeSampling() {
  for (const each of SAMPLING) {
    const label = document.createElement("label");
    const field = document.createElement("input");
    Object.assign(field, { type: "number", min: each.min, max: each.max, step: each.step, id: `s-${each.name}` });
    field.inputMode = "decimal";
    field.addEventListener("change", () => {
      if (field.value === "" || !field.validity.valid) delete store.sampling[each.name];
      else store.sampling[each.name] = Number(field.value);
      store.save();
    });
    label.append(each.label, field);
    $("sampling").append(label);
  }
}

function openSettings() {
  for (const each of SAMPLING) $(`s-${each.name}`).value = store.sampling[each.name] ?? "";
  $("system").value = (store.current ?? store.add()).system;
  $("api-key").value = store.apiKey;
  if (!$("settings").open) $("settings").showModal();
}

function exportChat() {
  const chat = store.current;
  const url = URL.createObjectURL(new Blob([JSON.stringify(chat, null, 2)], { type: "application/json" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: "conversation.json" });
  link.click();
  URL.revokeObjectURL(url);
}

function nextTheme() {
  const root = document.documentElement;
  const isDark = getComputedStyle(root).getPropertyValue("--is-dark").trim() === "1";
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("poot.theme", root.dataset.theme); } catch { /* storage is off */ }
}

function hideSidebar() {
  document.body.classList.remove("sidebar-open");
  $("shade").hidden = true;
}

function showSidebar() {
  document.body.classList.add("sidebar-open");
  $("shade").hidden = false;
  $("new-chat").focus();
}

// ---- what a person does ----

function grow() {
  const field = $("composer-text");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, 240)}px`;
  showBusy();
}

function submit(event) {
  event?.preventDefault();
  const field = $("composer-text");
  const text = field.value.trim();
  if (!text || underway) return;
  field.value = "";
  grow();
  ask(store.current ?? store.add(), text);
}

function keys(event) {
  if (event.key === "Escape" && underway && !$("settings").open) stop();
  if (event.key === "Escape") hideSidebar();
  if (event.altKey && event.code === "KeyN") { event.preventDefault(); newChat(); }
  if (event.altKey && event.code === "KeyS") { event.preventDefault(); openSettings(); }
  const isTyping = /^(INPUT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "");
  if (event.key === "/" && !isTyping) { event.preventDefault(); $("composer-text").focus(); }
}

function wire() {
  $("composer").addEventListener("submit", submit);
  $("composer-text").addEventListener("input", grow);
  $("composer-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  });
  $("stop").addEventListener("click", stop);
  $("new-chat").addEventListener("click", newChat);
  $("show-sidebar").addEventListener("click", showSidebar);
  $("hide-sidebar").addEventListener("click", hideSidebar);
  $("shade").addEventListener("click", hideSidebar);
  $("theme").addEventListener("click", nextTheme);
  $("open-settings").addEventListener("click", openSettings);
  $("system").addEventListener("change", () => { store.current.system = $("system").value; store.save(); });
  $("api-key").addEventListener("change", () => { store.apiKey = $("api-key").value.trim(); store.save(); notice(""); });
  $("reset-sampling").addEventListener("click", () => { store.sampling = {}; store.save(); openSettings(); });
  $("export-chat").addEventListener("click", exportChat);
  $("delete-all").addEventListener("click", () => {
    if (!confirm("Delete all conversations of this browser?")) return;
    stop();
    store.clear();
    $("settings").close();
    show();
  });
  $("settings").addEventListener("click", (event) => { if (event.target === $("settings")) $("settings").close(); });
  $("scroll").addEventListener("scroll", () => {
    const box = $("scroll");
    const below = box.scrollHeight - box.scrollTop - box.clientHeight;
    follows = below < 60;
    $("to-end").hidden = below < 240;
  });
  $("to-end").addEventListener("click", toEnd);
  document.addEventListener("keydown", keys);
  for (const text of IDEAS) {
    $("ideas").append(button(text, "idea", () => { $("composer-text").value = text; submit(); }));
  }
}

makeSampling();
wire();
show();
grow();
watchModel();
if (matchMedia("(hover: hover)").matches) $("composer-text").focus();
