(() => {
  const root = document.documentElement, tip = document.getElementById('tip');
  document.getElementById('theme').onclick = () => {
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme:dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
  };
  document.addEventListener('pointermove', event => {
    const text = event.target.dataset && event.target.dataset.tip;
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const right = event.clientX + 16 + tip.offsetWidth > innerWidth, low = event.clientY + 16 + tip.offsetHeight > innerHeight;
    tip.style.left = (right ? event.clientX - 12 - tip.offsetWidth : event.clientX + 16) + 'px';
    tip.style.top = (low ? event.clientY - 12 - tip.offsetHeight : event.clientY + 16) + 'px';
  });
  for (const table of document.querySelectorAll('.sortable')) {
    table.tHead.onclick = event => {
      const column = event.target.cellIndex, body = table.tBodies[0];
      const down = table.dataset.by === String(column) ? table.dataset.down !== 'true' : true;
      const key = row => row.cells[column].dataset.v;
      const order = (a, b) => key(a) === undefined
        ? b.cells[column].textContent.localeCompare(a.cells[column].textContent) : key(b) - key(a);
      body.append(...[...body.rows].sort((a, b) => down ? order(a, b) : -order(a, b)));
      table.dataset.by = column;
      table.dataset.down = down;
    };
  }
})();
