// Markdown of an answer to DOM nodes. What a model writes is never trusted: everything passes DOMPurify,
// and the page's Content-Security-Policy keeps images and scripts of others out whatever it lets through.
import { marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";

marked.use({ gfm: true, breaks: true });

const RULES = {
  RETURN_DOM_FRAGMENT: true,
  FORBID_TAGS: ["style", "form", "input", "textarea", "select", "button", "iframe", "object", "svg", "math"],
  FORBID_ATTR: ["style", "id", "class", "name"],
  ALLOW_DATA_ATTR: false,
};

/** Replace what `element` shows by the markdown `text`. */
export function renderMarkdown(element, text) {
  const fragment = DOMPurify.sanitize(marked.parse(text), RULES);
  for (const link of fragment.querySelectorAll("a[href]")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const image of fragment.querySelectorAll("img")) {
    // Pictures of other servers are not fetched; their text stands for them.
    if (!image.src.startsWith("data:image/")) image.replaceWith(document.createTextNode(image.alt || "[image]"));
  }
  for (const table of fragment.querySelectorAll("table")) {
    const box = document.createElement("div");
    box.className = "table";
    table.replaceWith(box);
    box.append(table);
  }
  for (const block of fragment.querySelectorAll("pre")) {
    const box = document.createElement("div");
    box.className = "code";
    block.replaceWith(box);
    block.tabIndex = 0; // so that it scrolls from the keyboard
    box.append(copyButton(() => block.textContent), block);
  }
  element.replaceChildren(fragment);
}

/** Return a button that copies what `text()` gives. */
export function copyButton(text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await copy(text());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1200);
  });
  return button;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Over plain HTTP from another machine there is no clipboard interface.
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
