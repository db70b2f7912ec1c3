// Gives the code or the ticket of `svc open` back for a cookie. It is good once; it leaves the address bar before anything else.
const code = location.hash.slice(1);
const ticket = new URLSearchParams(location.search).get('ticket');
history.replaceState(null, '', '/login');

const status = document.getElementById('status');
const help = document.getElementById('help');

function fail(text) {
  status.textContent = text;
  help.hidden = false;
}

async function signIn() {
  const reply = await fetch('/login', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', 'Svc-Page': '1' },
    body: JSON.stringify(ticket ? { ticket } : { code }),
  });
  if (reply.ok) {
    location.replace('/');
    return;
  }
  const problem = await reply.json().catch(() => ({}));
  fail(problem.detail ?? `The daemon answers ${reply.status}.`);
}

if (code || ticket) {
  signIn().catch(() => fail('The daemon does not answer.'));
} else {
  fail('This browser is not signed in.');
}
