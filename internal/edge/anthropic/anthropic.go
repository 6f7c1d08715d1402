// Package anthropic is the wire form of Anthropic's Messages API: strict decoding
// of requests to POST /v1/messages and /v1/messages/count_tokens, and the bytes of
// answers, streams and errors.
//
// Decoding knows every field that the official client sends. A field is understood,
// or accepted because ignoring it cannot change the answer, or refused by name;
// nothing is dropped in silence. What the API leaves to its own models is treated
// so:
//
//   - Turns of one role in a row are one turn, as the API says. Blocks of text in a
//     row, or of thinking, are joined by newlines; those that a call or a thought
//     stands between were one text when the model wrote them, and are again.
//   - Results of tools become messages of tools, before the text of the turn that
//     they came in, under the name of the call that they answer. An error without a
//     text says "error"; one with a text is that text, since templates know no
//     other sign.
//   - Thinking goes back into the prompt where the template wants it, whatever its
//     signature, which is empty in our answers: nothing is signed. Redacted thinking
//     is ciphertext of another server, and left out.
//   - thinking.budget_tokens is accepted and not kept: there is nothing that ends a
//     model's thinking in good order, and clients that think always send it.
//     max_tokens bounds thinking and answer together.
//   - cache_control is accepted anywhere: prefixes are found by themselves. The line
//     "x-anthropic-billing-header: …" that Claude Code puts before its system prompt
//     is no text for a model, and another one in every request, so that no prefix
//     would ever be found: it is left out.
package anthropic
