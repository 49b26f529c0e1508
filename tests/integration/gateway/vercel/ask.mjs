// Asks the server at argv[2] by the Vercel AI SDK, as its users do, and prints what came of it as JSON.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, Output, streamText, tool } from "ai";

const [url, model] = process.argv.slice(2);
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" });
const ways = { chats: openai.chat(model), responses: openai.responses(model), messages: anthropic(model) };
const name = { type: "object", properties: { name: { type: "string" } }, required: ["name"], additionalProperties: false };
const number = { type: "object", properties: { a: { type: "integer" } }, required: ["a"], additionalProperties: false };
const add = tool({ description: "Add.", inputSchema: jsonSchema(number) });

const found = {};
for (const [way, one] of Object.entries(ways)) {
  const asked = { model: one, prompt: "a", maxRetries: 0, maxOutputTokens: 200 };
  const { text, usage } = await generateText(asked);
  const streamed = (await Array.fromAsync(streamText(asked).textStream)).join("");
  const filled = generateText({ ...asked, output: Output.object({ schema: jsonSchema(name) }) });
  const output = await filled.then((answer) => answer.output, (error) => error.message);
  const { toolCalls } = await generateText({ ...asked, tools: { add }, toolChoice: { type: "tool", toolName: "add" } });
  const refused = await generateText({ ...asked, headers: { "x-penstock-timeout": "soon" } }).then(() => null, (error) => error.statusCode);
  found[way] = { text, tokens: usage.outputTokens, streamed, output, tool: toolCalls.map((call) => [call.toolName, call.input]), refused };
}
console.log(JSON.stringify(found));
