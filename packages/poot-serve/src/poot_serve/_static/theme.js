// Sets the theme before anything is drawn, so that nothing flashes.
(() => {
  let theme = null;
  try { theme = localStorage.getItem("poot.theme"); } catch { /* storage is off */ }
  if (theme) document.documentElement.dataset.theme = theme;
})();
