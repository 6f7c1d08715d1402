// Package anthropic implements the wire format of Anthropic's Messages API: strict decoding of requests to
// POST /v1/messages and /v1/messages/count_tokens, and encoding of answers, streams and errors.
//
// The decoder knows every field which the official client sends. It implements a field, or accepts it because
// ignoring it cannot change the answer, or refuses it by name. It drops nothing silently. Where the API
// depends on Anthropic's own models, this package does the following:
//
//   - Adjacent turns of one role form one turn, as the API specifies. Adjacent blocks of text, or of
//     thinking, are joined by newlines. Blocks separated by a tool call or by thinking are joined without a
//     newline, since the model wrote them as one text.
//   - Tool results become tool messages, before the text of the turn which contains them, with the name of
//     the tool called. An error without a text gets the text "error"; other errors are plain text, since chat
//     templates have no flag for errors.
//   - Thinking is returned to the prompt if the template supports it. Its signature is ignored, and is empty
//     in answers: nothing is signed. Redacted thinking is another server's ciphertext and is dropped.
//   - thinking.budget_tokens is accepted and ignored: no mechanism ends a model's thinking cleanly, and
//     clients which use thinking always send a budget. max_tokens limits thinking and answer together.
//   - cache_control is accepted anywhere: the prefix cache needs no marks. The line
//     "x-anthropic-billing-header: …", which Claude Code puts before its system prompt, is dropped: it is not
//     meant for the model, and it differs in every request, so that no prefix would ever match.
package anthropic
