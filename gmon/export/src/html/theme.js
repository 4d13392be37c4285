// Light and dark.

/** The browser's own setting. */
const BROWSER_IS_DARK = matchMedia("(prefers-color-scheme: dark)");

function browserTheme() {
  return BROWSER_IS_DARK.matches ? "dark" : "light";
}

/** Sets what was kept of an earlier time, or else the browser's own setting. */
function followBrowser() {
  let theme = browserTheme();
  try {
    const kept = localStorage.getItem("gmon-theme");
    if (kept === "light" || kept === "dark") theme = kept;
  } catch {
    // A page from a file may have no storage.
  }
  document.documentElement.dataset.theme = theme;
}

/** Sets light or dark and keeps it for the next time, if the browser lets us. The browser's own setting is not kept, but followed. */
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    if (theme === browserTheme()) localStorage.removeItem("gmon-theme");
    else localStorage.setItem("gmon-theme", theme);
  } catch {
    // A page from a file may have no storage.
  }
}

function switchTheme(view) {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  view?.flame?.draw();
}
