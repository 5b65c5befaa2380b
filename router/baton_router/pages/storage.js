// What a tab keeps until it is closed; a browser may refuse to keep anything.

/** The text that is kept under a name; null where there is none. */
export function recall(name) {
  try {
    return sessionStorage.getItem(name);
  } catch {
    return null;
  }
}

/** Keep a text under a name; returns whether the browser does. */
export function keep(name, text) {
  try {
    sessionStorage.setItem(name, text);
    return true;
  } catch {
    return false;
  }
}
