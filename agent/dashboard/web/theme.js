// Sets the theme before anything is drawn: the one chosen last here, or the system's.
"use strict";
{
  let theme = null;
  try {
    theme = localStorage.getItem("muster-theme");
  } catch {
    // Storage may be off; then a choice lasts as long as the page.
  }
  if (theme !== "light" && theme !== "dark") {
    theme = matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
  }
  document.documentElement.dataset.theme = theme;
}
