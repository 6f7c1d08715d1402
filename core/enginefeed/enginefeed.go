// Package enginefeed understands what engines of other makes say of their caches.
//
// vLLM, SGLang, TensorRT-LLM and simulators of them publish numbered batches of events: blocks
// were stored, removed, all of them cleared. Each has its own bytes, and each has changed them.
// Three values, none of which has a goroutine or a clock, turn such a feed into ours:
//
//   - [Decoder] reads a batch, whatever its dialect, into a [Batch] ([PullDecoder] does so for the
//     JSON that TensorRT-LLM is asked for);
//   - [Table] knows which of the engine's blocks is which of ours, and turns a batch into events
//     of package kv;
//   - [Machine] keeps the feed honest: it looks at the number of each batch and says which is
//     applied, when the engine must be asked to repeat some, and when what is known of its cache must be forgotten.
//
// An engine's hash is opaque here ([kv.EngineHash]): it leads to parents and removals of the
// engine that sent it. Our own hashes are computed from the tokens and keys of the event by
// the rules by which requests are hashed, so what cannot be said in them (prompts of
// embeddings, adapters without a name, pairs of tokens) is counted and left out: a block that is
// not known costs a missed hit, a block that is known by a wrong name costs every decision after it.
//
// The bytes of all shapes are in docs/format/engine-events.md.
package enginefeed
