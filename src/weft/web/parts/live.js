// The server that this page came from: questions and answers in JSON.

/** Ask; a question that another overtakes is given up. */
export async function post(path, question, signal) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question),
    signal,
  });
  const content = await answer.json().catch(() => null);
  if (!content) throw new Error(`the server answered ${answer.status}`);
  if (!answer.ok) throw new Error(content.refused ?? `the server answered ${answer.status}`);
  return content;
}
