// Package enginefeed decodes and repairs the KV-cache event feeds of other engines.
//
// vLLM, SGLang, TensorRT-LLM and their simulators publish numbered batches of events: blocks were stored,
// blocks were removed, all blocks were cleared. Each engine has its own encoding, and each has changed it.
// Three types turn such a feed into Penstock's events. None of them has a goroutine or a clock:
//
//   - [Decoder] reads a batch of any dialect into a [Batch] ([PullDecoder] reads the JSON which
//     TensorRT-LLM serves on request);
//   - [Table] maps the engine's blocks to Penstock's blocks, and turns a batch into events of package kv;
//   - [Machine] keeps the feed consistent: it checks the number of each batch, and decides which batch is
//     applied, when the engine must repeat batches, and when everything known of its cache must be
//     forgotten.
//
// An engine's hash is opaque here ([kv.EngineHash]): it identifies parents and removals of the engine which
// sent it. Penstock's hashes are computed from the tokens and keys of the event by the rules which hash
// requests. What those rules cannot express (prompts of embeddings, adapters without a name, pairs of
// tokens) is counted and left out. An unknown block costs one cache hit. A block with a wrong hash spoils
// every later decision.
//
// docs/format/engine-events.md describes the bytes of all shapes.
package engineevents
