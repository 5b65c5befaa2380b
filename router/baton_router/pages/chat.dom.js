// Makes elements without ever reading text as HTML.

export const element = (id) => document.getElementById(id);

/** Make an element with these properties (attributes where a name has a dash, or is `role`) and children. */
export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "role" || name.includes("-")) node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

/** A button that copies what `text()` returns, and says so. */
export function copyButton(text, subject) {
  const button = make("button", { type: "button", className: "quiet", "aria-label": `Copy ${subject}` }, "Copy");
  button.addEventListener("click", async () => {
    const isCopied = await copy(text());
    button.textContent = isCopied ? "Copied" : "Not copied";
    announce(isCopied ? `Copied ${subject}` : `Could not copy ${subject}`);
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return button;
}

/** Have screen readers say a short text. */
export function announce(text) {
  element("status").textContent = text;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  // Browsers have no clipboard API on pages that came over plain HTTP from another machine.
  const box = make("textarea", { value: text, className: "unseen" }), before = document.activeElement;
  document.body.append(box);
  box.select();
  const isCopied = document.execCommand("copy");
  box.remove();
  before?.focus();
  return isCopied;
}
