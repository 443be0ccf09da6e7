// The server that this page came from: questions and answers in JSON.

/** Ask; an Error says why there is no answer. */
export async function post(path, question) {
  const answer = await sent(path, question);
  const content = await answer.json().catch(() => null);
  if (!answer.ok || !content) throw new Error(content?.refused ?? `the server answered ${answer.status}`);
  return content;
}

async function sent(path, question) {
  try {
    return await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(question),
    });
  } catch {
    throw new Error("`weft serve` does not answer. Is it still running?");
  }
}
